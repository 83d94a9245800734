"""The client of a judge's language model, wherever that is: an HTTP API, a user's own part, or this process.

client = open_client(judge, Path("runs/judge"), ledger, stack)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from guerdon.endpoints.llm_client import HttpLLMClient, LLMClient, OwnLLMClient, ReplyModel
from guerdon.files.append_log import Cache, Ledger, shared
from guerdon.network.retry import Clock
from guerdon.settings.label import JUDGES, JudgeSettings, LocalJudgeSettings, OwnJudgeSettings
from guerdon.settings.text_policy import TextPolicySettings

if TYPE_CHECKING:
    from guerdon.endpoints.completions import Completer


def open_client(
    judge: JudgeSettings,
    folder: Path,
    ledger: Ledger,
    stack: ExitStack,
    *,
    clock: Clock | None = None,
    completer: Callable[[TextPolicySettings], Completer] | None = None,
) -> LLMClient:
    """The client of a judge's language model.

    Args:
        judge: which model, where.
        folder: keeps its replies.
        ledger: of its calls.
        stack: closes what is opened.
        clock: time.
        completer: of a local model; None: one that samples in this process.

    Raises:
        ConfigError: the key of the endpoint is missing, or a user's factory raised.
        DataError: another process uses the folder.
    """
    if isinstance(judge, LocalJudgeSettings):
        from guerdon.endpoints.completions import local_client  # imports torch

        return local_client(judge.model_name, folder, stack, completer)
    replies = stack.enter_context(shared(Cache, folder / "replies.jsonl"))
    if isinstance(judge, OwnJudgeSettings):
        return OwnLLMClient(JUDGES.build(judge.api, judge.params, ReplyModel, model=judge.model), judge, replies)
    return HttpLLMClient(judge, replies, ledger, clock or Clock())
