"""What the tables of a validation show, above all where something did not run."""

from __future__ import annotations

from compatfix.model import Report
from compatfix.report.tables import tables
from compatfix.validate.benchmark import benchmark
from compatfix.validate.tally import add_lengths
from tests.validate.made import differing, refusal, tally, weights_result, weights_row


def test_the_benchmark_is_labelled_and_counts_stages_once():
    chain = tally("chain", stage_times={"draft": 1.0, "build": 2.0, "build_heap": 1.5, "verify": 1.0})
    add_lengths(chain, [2, 4])
    table = benchmark(None, [chain])
    assert table["label"] == "oracle draft"
    assert table["rows"][0]["accepted_length"] == 3.0
    assert table["rows"][0]["per_position"] == [1.0, 0.5, 0.5]
    assert table["rows"][0]["stage_shares"]["build"] == 0.5


def test_plain_decoding_that_raised_keeps_its_row_with_what_it_raised():
    plain = tally("plain", "none", run=0, same=0, tokens=0, forwards=0, error=refusal("no"))
    section = benchmark(plain, [tally("chain", error=refusal("neither " + "do I " * 30))])
    report = Report("gate", {}, sections={"benchmark": section})
    assert [(row[0], row[1], row[3]) for row in tables(report)[0].rows] == [
        ("plain", "–", "raised RuntimeRefusal: no"),
        ("chain", "–", "raised RuntimeRefusal: neither do I do I do I do I do I do I do I do …"),
    ]


def test_the_checkpoint_has_a_table_of_its_own():
    rows = [
        weights_row("plain", accepted_length=1.0, forwards_per_token=1.0),
        weights_row("tree-32", **differing(0.1, 0.2)),
        weights_row("chain", same=1, error=refusal("no"), accepted_length=None, forwards_per_token=None),
    ]
    runtime = {"strategy": "gated-delta tree", "noise": 0.002, "fault": 1.5}
    (table,) = tables(Report("gate", {}, sections={"weights": weights_result(*rows, device="H200", runtime=runtime)}))
    assert table.title == "On the checkpoint (real draft)"
    assert table.brief
    assert table.columns[1:4] == ("texts equal", "rounding", "corruption")
    assert table.columns[4:] == ("accepted length", "target forwards/token")
    assert table.rows == (
        ("plain", "8/8", "0", "0", "1.00", "1.00"),
        ("tree-32", "6/8", "2", "0", "3.20", "0.30"),
        ("chain", "1/8, then RuntimeRefusal", "0", "0", "–", "–"),
    )
    for words in (
        "on H200 in bfloat16",
        "itself 0.25",
        "by gated-delta tree (noise 0.002, smallest planted fault 1.5)",
    ):
        assert words in table.note
