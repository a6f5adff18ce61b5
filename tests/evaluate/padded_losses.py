"""A scorer's losses row by row."""

from torch.nn.utils.rnn import pad_sequence


def padded_losses(scorer, rows):
    """The loss of each row's tokens except the first: (rows, longest - 1), 0 in padding."""
    return pad_sequence(list(scorer.start(rows)().split([len(row) - 1 for row in rows])), True)
