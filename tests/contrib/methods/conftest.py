"""Fixtures of the comparisons with released code."""

from tests.parity.conftest import exact as exact
