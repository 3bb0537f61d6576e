"""Ratios, tables, plots and the page of the benchmarks, without measuring."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import __main__ as command
from benchmarks import isolated, page, plots
from benchmarks.isolated import Outcome
from benchmarks.measuring import Ratio, Row, Series, at_least, at_most, measure, spread, table
from benchmarks.svg import Drawing, Scale

SVG = "{http://www.w3.org/2000/svg}"
DOCS = Path(__file__).parents[2] / "docs"
ROW = Row("row", "1 µs", "peer", "2 µs", Ratio([0.5]), "<= 1 x", True)


# Ratios


def test_ratio_is_taken_within_each_round():
    ours, peer = Series("ours", [1.0, 20.0, 3.0]), Series("peer", [2.0, 40.0, 2.0])
    assert Ratio.of(ours, peer).values == [0.5, 0.5, 1.5]
    assert str(Ratio.of(ours, peer)) == "0.500 (0.500-1.500) x"


def test_target_applies_to_median_of_ratios():
    ours, peer = Series("ours", [1.0, 20.0, 3.0]), Series("peer", [2.0, 40.0, 2.0])
    assert at_most(0.5, "row", ours, peer).is_met  # the quotient of the medians, 3 / 2, would not meet it
    assert not at_most(0.49, "row", ours, peer).is_met
    assert at_least(2.0, "row", ours, peer).is_met


def test_single_figure_has_no_spread():
    assert spread([0.25], "{:.0%}".format) == "25%"
    assert spread([0.25, 0.5, 0.75], "{:.0%}".format) == "50% (25%-75%)"
    assert str(Ratio([151.7])) == "152 x"


def test_row_without_peer_has_no_ratio():
    assert table([ROW._replace(ratio=None, is_met=None)])[2].split("|")[5].strip() == ""


def test_series_are_in_order_of_rounds():
    counts = {"a": 0, "b": 0}

    def counted(name):
        def run_round():
            counts[name] += 1
            return counts[name]

        return run_round

    a, b = measure({"a": counted("a"), "b": counted("b")}, rounds=3, warm_up=False)
    assert a.values == b.values == [1, 2, 3]


# The drawing


def test_scale_maps_values_to_coordinates():
    assert [Scale(0, 10, 100, 200)(value) for value in (0, 5, 10)] == [100, 150, 200]
    assert Scale(0, 10, 200, 100)(10) == 100  # upwards
    assert Scale(10, 1000, 0, 100, is_log=True)(100) == pytest.approx(50)


def test_ticks_are_round_values_within_scale():
    assert Scale(0, 160, 0, 1).ticks(3) == [0, 50, 100, 150]
    assert Scale(0, 1, 0, 1).ticks(5) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert Scale(100, 100_000, 0, 1, is_log=True).ticks() == [100, 1000, 10_000, 100_000]
    assert Scale(30, 500, 0, 1, is_log=True).ticks() == [100]


def test_drawing_escapes_texts():
    drawing = Drawing(10, 10, "a < b & c", "</desc>")
    drawing.text(1, 2.25, "<script>&")
    root = ElementTree.fromstring(str(drawing))
    assert root.find(f"{SVG}title").text == "a < b & c"
    assert root.find(f"{SVG}desc").text == "</desc>"
    assert root.find(f"{SVG}text").text == "<script>&"
    assert root.find(f"{SVG}text").get("y") in ("2.2", "2.3")


def test_per_second_counts_instants():
    assert plots.per_second([0.0, 0.9, 1.0, 3.5]) == [2, 1, 0, 1]
    assert plots.per_second([]) == []


def test_panel_shows_served_refused_and_legal_requests():
    panels = [plots.Panel("ours & more", [0.1, 0.2, 1.5], []), plots.Panel("peer", [0.1], [0.5, 2.5], True)]
    root = ElementTree.fromstring(plots.over_time("Speed", panels, rate=2, burst=1))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"Speed", "ours & more", "3 served in 1.5 s, 0 refused", "1 served until it was stopped, 2 refused"} <= set(
        texts
    )
    assert {"seconds since the first request", "requests per second", "legal limit"} <= set(texts)
    colours = [line.get("class") for line in root.iter(f"{SVG}polyline")]
    assert colours.count("ink-line") == 1 + len(panels)  # the legend, and the limit in each panel
    assert colours.count("red-line") == 1 + 2  # the first has no refusal; the second has two stretches


def test_panel_without_served_requests_is_drawn():
    ElementTree.fromstring(plots.over_time("Speed", [plots.Panel("peer", [], [])], rate=2, burst=1))


def test_cost_plot_has_dot_for_each_item_count():
    lines = {"ours": {100: [1e-5, 2e-5], 1000: [1e-5]}, "peer": {100: [3e-4]}}
    root = ElementTree.fromstring(plots.against_count("Cost", lines))
    dots = [dot.get("class") for dot in root.iter(f"{SVG}circle")]
    assert dots == ["blue-dot", "blue-dot", "purple-dot"]
    assert {"µs per item", "items in the run"} <= {text.text for text in root.iter(f"{SVG}text")}


# The page


def test_put_keeps_text_outside_its_part(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("# Title\n\n<!-- one: begin -->\nold\n<!-- one: end -->\n\nAfter.\n")
    page.put(path, "one", ["new"])
    page.put(path, "two", ["more"])
    page.put(path, "one", ["newer"])
    assert path.read_text() == (
        "# Title\n\n<!-- one: begin -->\n\nnewer\n\n<!-- one: end -->\n\nAfter.\n\n"
        "<!-- two: begin -->\n\nmore\n\n<!-- two: end -->\n"
    )


def test_page_has_part_for_every_benchmark():
    text = (DOCS / "benchmarks.md").read_text()
    for name in (page.RUN, *command.NAMES):
        assert text.count(f"<!-- {name}: begin -->") == text.count(f"<!-- {name}: end -->") == 1, name


def test_page_shows_exactly_the_existing_plots():
    shown = re.findall(r"!\[.+\]\(plots/(.+)\)", (DOCS / "benchmarks.md").read_text())
    assert sorted(shown) == sorted(path.name for path in (DOCS / "plots").glob("*"))
    for name in shown:
        ElementTree.parse(DOCS / "plots" / name)


def test_run_part_lists_missed_failed_and_skipped_benchmarks(monkeypatch):
    monkeypatch.setattr(page, "machine", lambda _: ["2 CPUs", "agentos-parallel 1"])
    missed = ROW._replace(is_met=False)
    lines = page.of_run(
        {
            "one": Outcome([ROW, missed], 61.0, 0.02),
            "two": Outcome([ROW], 5.0, 0.0, "OSError", "/somewhere/secret"),
            "three": None,
        },
        [],
    )
    cells = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in lines[-3:]}
    assert lines[2] == f"Last complete run: {page.today()}, 1 min 6 s."
    assert cells["one"] == ["1 min 1 s", "2%", "1 of 2", ""]
    assert cells["two"] == ["5 s", "", "", "FAILED (OSError): the figures below are of an earlier run"]
    assert cells["three"] == ["", "", "", "did not run"]


def test_failed_benchmark_leaves_page_parts_unchanged(tmp_path, monkeypatch, capsys):
    path = tmp_path / "page.md"
    page.put(path, "items", ["old items"])
    page.put(path, "memory", ["old memory"])
    outcomes = {"items": Outcome([], 1.0, 0.0, "OSError", "no disk"), "memory": Outcome([ROW], 2.0, 0.0)}
    monkeypatch.setattr(page, "machine", lambda _: ["2 CPUs"])
    monkeypatch.setattr(command, "run_isolated", lambda name, _only: outcomes[name])
    assert not command.run({"items": [], "memory": []}, path)
    text = path.read_text()
    assert "old items" in text
    assert "old memory" not in text
    assert "| row         | 1 µs" in text
    printed = capsys.readouterr()
    assert "1 of 2 benchmarks measured in 3 s" in printed.out
    assert printed.err == "FAILED: items: OSError: no disk\n"


def test_rows_measured_before_failure_are_kept(monkeypatch, capsys):
    class Failing:
        @staticmethod
        def rows():
            yield ROW
            raise OSError("no disk")

    monkeypatch.setattr(isolated, "module_of", lambda _: Failing)
    outcome = isolated.measured("failing", [])
    assert (outcome.rows, outcome.error, outcome.message) == ([ROW], "OSError", "no disk")
    assert "no disk" in capsys.readouterr().err
