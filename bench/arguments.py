# SPDX-License-Identifier: Apache-2.0
"""Types of options that several benchmarks have."""
import argparse


def list_of(convert, allowed=None):
    """An argparse type: words between commas, each converted, and one of `allowed` if that is given."""
    def parse(text):
        items = [convert(word) for word in text.split(",")]
        for item in items:
            if allowed is not None and item not in allowed:
                raise argparse.ArgumentTypeError(f"{item!r} is none of {', '.join(allowed)}")
        return items
    return parse
