"""Transformers in a process of its own."""

from __future__ import annotations

import pytest

from distkv.demo.run import reference


def test_a_reference_that_fails_says_why(tmp_path):
    with pytest.raises(reference.ReferenceFailed, match="its process ended with code 1") as error:
        reference.run(tmp_path, ["text"], 4, tmp_path)
    assert error.value.log
