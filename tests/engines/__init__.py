"""Real model servers, opt-in (`make test-engines`): llama.cpp server and vLLM on the CPU, with small models."""
