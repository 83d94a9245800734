"""Scores of a `VerdictModel` in the literal form: one text and one forward pass per step; slow, for comparison."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from guerdon.episodes.solution_formats import training_text
from guerdon.models.text.text_inputs import Reading, buckets, close_steps, hidden_at
from guerdon.models.text.verdict import VerdictModel, opening, verdict_reading
from guerdon.policies.batches.tokens import piece_ids
from guerdon.types import Episode, FloatArray


@torch.inference_mode()
def prefix_scores(model: VerdictModel, episodes: Sequence[Episode], *, pieces: bool = False) -> list[FloatArray]:
    """The scores of all steps, each from a forward pass over a text of its own, as the seed's script reads them.

    Args:
        model: a language model that gives verdicts.
        episodes: solutions with at least one step, all short enough.
        pieces: tokenise the text in the pieces that `score` has; else in one piece, as training on text does. A
            tokenizer that merges nothing across the pieces gives the same ids either way.

    Raises:
        DataError: a character the tokenizer does not know.
    """
    prefixes: list[Reading] = []
    for episode in episodes:
        for k in range(len(episode.texts or ())):
            steps = close_steps(episode.texts or (), model.card.separator)[: k + 1]
            if pieces:
                whole = verdict_reading(model.tokenizer, episode.task, steps, 0)
                ids = np.concatenate([whole.ids[: whole.ends_S[-1] + 1], model.tail])
            else:
                text = piece_ids(model.tokenizer, [training_text(episode.task, steps)])
                ids = np.concatenate([opening(model.tokenizer), *text])
            prefixes.append(Reading(ids, 1, np.array([len(ids) - 1])))
    scores = np.zeros(len(prefixes), dtype=np.float32)
    for group in buckets(prefixes, model.micro_batch_size):
        chosen = [prefixes[i] for i in group]
        logits = model.verdict_logits(hidden_at(model.policy, chosen, [r.ends_S for r in chosen]))
        scores[group] = torch.sigmoid(logits).cpu().numpy()
    cuts = np.cumsum([len(e.texts or ()) for e in episodes])[:-1]
    return list(np.split(scores, cuts))
