"""Statistics: intervals, classification metrics, learning curves, comparisons of training runs."""
