"""Policy losses as users write them, right and wrong ones."""

from guerdon.rl.losses import PolicyTerms, SlopedTerms, ppo


def cispo(log_probs, old_log_probs, advantages, clip_range, clip_range_high, scale: float = 1.0):
    """CISPO with a factor, and what it weighs decisions by."""
    ratio = (log_probs.detach() - old_log_probs).exp()
    weight = ratio.clamp(1.0 - clip_range, 1.0 + clip_range_high)
    outside = (weight != ratio).float()
    return PolicyTerms(-scale * weight * advantages * log_probs, {"clip_fraction": outside, "weight": weight})


def whole_rows(log_probs, old_log_probs, advantages, mask):
    """A weight per response, from the mean ratio of its tokens."""
    ratio = (log_probs.detach() - old_log_probs).exp() * mask
    weight = ratio.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp_min(1)
    return PolicyTerms(-weight * advantages * log_probs, {"weight": weight.expand_as(log_probs)})


def without_ratio(log_probs, advantages):
    """REINFORCE."""
    return PolicyTerms(-advantages * log_probs)


def without_log_probs(advantages):
    """Nothing to learn from."""
    return PolicyTerms(-advantages)


def mean(log_probs, advantages):
    """Already reduced."""
    return PolicyTerms((-advantages * log_probs).mean())


def plain_tensor(log_probs, advantages):
    """Not PolicyTerms."""
    return -advantages * log_probs


def detached(log_probs, advantages):
    """Without gradient."""
    return PolicyTerms(-advantages * log_probs.detach())


def reduced_number(log_probs, advantages):
    """A number that is a mean already."""
    return PolicyTerms(-advantages * log_probs, {"size": advantages.abs().mean()})


def root_of_advantage(log_probs, advantages):
    """NaN where the advantage is negative."""
    return PolicyTerms(-advantages.sqrt() * log_probs)


def overflowing(log_probs, old_log_probs, advantages):
    """NaN where the ratio overflows and the advantage is 0, as PPO's."""
    return ppo(log_probs, old_log_probs, advantages, clip_range=0.2, clip_range_high=0.2)


def wrong_slope(log_probs, advantages):
    """Its slope is a sum."""
    return PolicyTerms(-advantages * log_probs)


wrong_slope.slope = lambda log_probs, advantages: SlopedTerms(-advantages * log_probs, -advantages.sum())


def nan_slope(log_probs, advantages):
    """Its slope's terms are NaN."""
    return PolicyTerms(-advantages * log_probs)


nan_slope.slope = lambda log_probs, advantages: SlopedTerms(log_probs * float("nan"), -advantages)
