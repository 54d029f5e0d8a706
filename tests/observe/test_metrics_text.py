"""Prometheus reads what the ranks serve."""

from __future__ import annotations

import pytest

from observe.snapshots import link, snapshot
from slipstream.observe.metrics_text import Family, of_ranks, render


def test_prometheus_reads_the_page() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    page = render(of_ranks([snapshot(3, links=[link(1, 5e7)], late={"1": 0.5})]))
    samples = {
        (sample.name, sample.labels.get("peer"), sample.labels.get("part")): sample
        for family in parser.text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert samples["slipstream_steps_total", None, None].value == 50
    assert samples["slipstream_recent_step_seconds", None, "exposed"].value == 0.05
    assert samples["slipstream_late_seconds_total", "1", None].value == 0.5
    sent = samples["slipstream_link_sent_bytes_total", "1", None]
    assert sent.value == 1 << 30
    assert sent.labels == {"job": "job", "rank": "3", "peer": "1", "transport": "tcp"}


def test_a_reducer_is_a_peer_with_its_name() -> None:
    page = render(of_ranks([snapshot(0, links=[link(-1, 5e7, sent=7, reducer="r1:29700")])]))
    assert (
        'slipstream_link_sent_bytes_total{job="job",rank="0",peer="reducer r1:29700",transport="tcp"} 7'
        in page
    )


def test_labels_are_escaped_and_empty_families_left_out() -> None:
    odd = Family("a", "gauge", "A.", [({"x": 'say "hi"\\\n'}, 1.5)])
    assert render([odd, Family("b", "gauge", "B.", [])]) == (
        '# HELP a A.\n# TYPE a gauge\na{x="say \\"hi\\"\\\\\\n"} 1.5\n'
    )
