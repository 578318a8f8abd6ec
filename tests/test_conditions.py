"""bench/conditions.py: headings and ratios of benchmarks."""

from __future__ import annotations

import pytest

from bench.conditions import conditions, heading, ratio, ratio_text


def test_ratio_is_ratio_of_medians_with_range_over_repeats() -> None:
    rates, base = [400.0, 450.0, 700.0], [1000.0, 900.0, 1400.0]
    # The median of the ratios per repeat would be 0.5, which does not match two medians shown in a table.
    assert ratio(rates, base) == pytest.approx([0.45, 0.4, 0.5])
    assert ratio_text(ratio(rates, base)) == "0.45 (0.40 to 0.50)"
    assert ratio_text([0.0078, 0.0071, 0.0112]) == "0.008 (0.007 to 0.011)"
    with pytest.raises(ValueError, match="shorter"):
        ratio(rates, base[:2])


def test_heading_has_machine_date_versions_images_and_pages() -> None:
    facts = conditions(12_000, "warm")
    text = heading(facts)
    assert all(word in text for word in (facts["machine"], facts["date"], "numpy", "Python", "12,000 images", "warm"))
