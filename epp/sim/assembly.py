"""From an API request to jobs for the engine, and the exchange that its answer is written from."""

import random

from epp.sim.api.exchange import Choice, Exchange
from epp.sim.api.request import ApiRequest
from epp.sim.config import SimConfig
from epp.sim.job import Job
from epp.sim.limits import ContextLengthError
from epp.sim.text import Answer, AnswerLimits, AnswerWriter, block_hashes, count_tokens


class UnknownModelError(Exception):
    """The request names a model that is not served.

    Attributes:
        model: Its name.
    """

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


class Assembler:
    """Makes exchanges.

    Attributes:
        writer: Where answers come from.
    """

    def __init__(self, config: SimConfig, *, checks_model: bool, context_tokens: int) -> None:
        self._config = config
        self._checks_model = checks_model
        self._context_tokens = context_tokens
        self._ids = random.Random(config.seed)
        self.writer = AnswerWriter(seed=config.seed, mean_tokens=config.output_tokens)

    def assemble(self, request: ApiRequest, *, created: int) -> Exchange:
        """Decide on the answers to `request`, and how much work they are.

        Raises:
            UnknownModelError: This engine checks names, and does not know this one.
            ContextLengthError: A prompt leaves no room for an answer.
        """
        lora = self._adapter(request.model)
        choices: list[Choice] = []
        for prompt in request.prompts:
            for number in range(request.choices):
                answer = self._answer(prompt, request, number)
                choices.append(Choice(index=len(choices), job=self._job(prompt, answer, lora), answer=answer))
        return Exchange(
            request=request,
            id=f"{self._ids.getrandbits(128):032x}",
            created=created,
            model=request.model or self._config.model_name,
            choices=tuple(choices),
        )

    def _adapter(self, model: str | None) -> str | None:
        if model in self._config.lora_adapters:
            return model
        if self._checks_model and model is not None and model not in self._config.served_model_names:
            raise UnknownModelError(model)
        return None

    def _answer(self, prompt: str, request: ApiRequest, number: int) -> Answer:
        if request.limits is None:
            return Answer(tokens=(), finish_reason="stop")
        room = self._context_tokens - count_tokens(prompt)
        if room < 1:
            raise ContextLengthError(count_tokens(prompt) + 1, self._context_tokens)
        limits = request.limits
        bounded = AnswerLimits(
            max_tokens=room if limits.max_tokens is None else min(room, limits.max_tokens),
            min_tokens=limits.min_tokens,
            ignore_eos=limits.ignore_eos and limits.max_tokens is not None,
        )
        return self.writer.write(prompt, bounded, choice=number, request_seed=request.request_seed)

    def _job(self, prompt: str, answer: Answer, lora: str | None) -> Job:
        hashes: tuple[int, ...] = ()
        if self._config.prefix_caching:
            hashes = block_hashes(prompt + answer.text, self._config.kv_block_tokens, salt=lora or "")
        return Job(
            prompt_tokens=count_tokens(prompt),
            output_tokens=len(answer.tokens),
            hashes=hashes,
            lora=lora,
            length_limited=answer.finish_reason == "length",
        )
