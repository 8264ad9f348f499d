"""Faults that tests switch on and off while a simulated server runs."""

from dataclasses import dataclass


@dataclass(slots=True)
class Faults:
    """What goes wrong at the moment.

    Attributes:
        metrics_delay_s: The metrics page is answered this much later, without holding up anything else.
        metrics_status: The metrics page is answered with this status and nothing else.
        answer_status: Every inference request is answered at once with this status.
        never_answer: Inference requests are taken and never answered; the engine knows nothing of them.
    """

    metrics_delay_s: float = 0.0
    metrics_status: int | None = None
    answer_status: int | None = None
    never_answer: bool = False
