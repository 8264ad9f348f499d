"""Upper bounds of histogram buckets. Those of the reference pickers are theirs to the digit (also `32778`), because
dashboards and alerts name them."""

LATENCY_S = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0,
    60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
)  # fmt: skip
LATENCY_TO_120_S = LATENCY_S[: LATENCY_S.index(120.0) + 1]
TIME_PER_TOKEN_S = (
    0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0,
    4.5, 6.0, 12.0, 18.0, 24.0, 30.0, 36.0, 48.0, 60.0, 90.0, 120.0, 180.0, 270.0, 360.0,
)  # fmt: skip
STREAMING_TIME_PER_TOKEN_S = (*TIME_PER_TOKEN_S[: TIME_PER_TOKEN_S.index(1.0) + 1], 2.0)
NORMALIZED_TIME_PER_TOKEN_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
SCHEDULING_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
PROCESSING_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

REQUEST_BYTES = tuple(float(2**power) for power in range(6, 31))
RESPONSE_BYTES = (
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32778.0, 65536.0,
)  # fmt: skip
PROMPT_TOKENS = (*RESPONSE_BYTES, 131072.0, 262144.0, 524288.0, 1048576.0)
OUTPUT_TOKENS = RESPONSE_BYTES[: RESPONSE_BYTES.index(8192.0) + 1]

PICK_S = (0.00001, 0.00002, 0.00005, *SCHEDULING_S, 0.2, 0.5, 1.0)
"""Ours go lower than the reference's: a pick among ten endpoints takes some tens of microseconds."""
SCRAPE_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
PAGE_BYTES = tuple(float(2**power) for power in range(8, 25, 2))
BODY_READ_S = (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
DRAIN_S = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
QUEUE_S = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
