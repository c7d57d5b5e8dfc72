"""Which row of a table each pair reads: buckets of T5 and DeBERTa, the shift of Transformer-XL and XLNet."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

import milepost as mp
from milepost import explore


def by_distance(found: explore.Analysis, name: str = "bucket") -> dict[int, int]:
    return {int(at): int(row) for at, row in zip(found["distance"], found[name], strict=True)}


def test_t5s_buckets_in_both_directions():
    found = by_distance(explore.bucket_map(mp.T5Bias(8, bidirectional=True)))
    starts = {0: 0, 1: 1, 7: 7, 8: 8, 12: 9, 16: 10, 23: 11, 32: 12, 46: 13, 64: 14, 91: 15}
    for behind in range(256):
        bucket = starts[max(each for each in starts if each <= behind)] if behind > 7 else behind
        assert found[behind] == bucket
        assert behind == 0 or found[-behind] == bucket + 16


def test_t5s_causal_buckets():
    found = by_distance(explore.bucket_map(mp.T5Bias(8)))
    ends = (18, 20, 23, 26, 30, 34, 39, 45, 51, 58, 66, 76, 86, 98, 112)
    for behind in range(256):
        assert found[behind] == (behind if behind < 16 else 16 + sum(behind > end for end in ends))
        assert found[-behind] == 0


@pytest.mark.parametrize(("buckets", "reach", "both"), [(32, 128, True), (16, 100, True), (32, 128, False)])
def test_t5s_buckets_are_those_of_the_formula_in_whole_numbers(buckets: int, reach: int, both: bool):
    found = explore.bucket_map(mp.T5Bias(2, buckets=buckets, reach=reach, bidirectional=both), length=200)
    side = buckets // 2 if both else buckets
    exact = side // 2

    def bucket(distance: int) -> int:
        far = abs(distance) if both else max(distance, 0)
        if far < exact:
            return far
        # The largest g with (reach/e)^(g/(side − e)) ≤ far/e.
        share = side - exact
        grown = max(g for g in range(share + 1) if reach**g * exact**share <= far**share * exact**g)
        return min(exact + grown, side - 1)

    for distance, row in by_distance(found).items():
        assert row == bucket(distance) + (side if both and distance < 0 else 0)
    for a, query in enumerate(found["query"]):
        for b, key in enumerate(found["key"]):
            distance = int(query - key)
            assert found["bucket by pair"][a, b] == bucket(distance) + (side if both and distance < 0 else 0)


def test_debertas_log_buckets():
    found = by_distance(explore.bucket_map(mp.Deberta(8, 1, 8, reach=512, buckets=256)), "row of the keys' table")
    known = {127: 127, 128: 128, 131: 131, 132: 131, 140: 137, 180: 160, 256: 192, 400: 233, 510: 255, 511: 255}
    assert {at: found[at] - 256 for at in known} == known
    for at in range(129, 512):
        grown = math.log(at / 128) / math.log(511 / 128) * 127
        # 511 is where the logarithm ends, at 127 but for rounding.
        bucket = math.ceil(grown - 1e-9) + 128
        assert found[at] == min(bucket + 256, 511)
        assert found[-at] == 256 - bucket
    assert found[-1000] == 1


def test_the_paper_of_deberta_reads_position_to_content_the_other_way_around():
    for index in ("code", "paper"):
        method = mp.Deberta(8, 1, 8, reach=20, index=index)
        found = explore.bucket_map(method, length=50)
        keys = by_distance(found, "row of the keys' table")
        code, paper = (by_distance(found, f"row of the queries' table, {name}") for name in ("code", "paper"))
        for at in range(-49, 50):
            assert keys[at] == code[at] == min(max(at + 20, 0), 39)
            assert paper[at] == min(max(-at + 20, 0), 39)
        assert method.index == index


def test_the_rows_drawn_are_those_that_attention_reads():
    method = mp.Deberta(4, 1, 4, reach=6, index="paper").double()
    found = explore.bucket_map(method, length=12)
    q, k = torch.randn(2, 1, 1, 12, 4, dtype=torch.float64)
    scores = mp.scores(q, k, mp.Scheme(method))[0, 0].detach() * 12**0.5
    to_keys, to_queries = (made(method.table).detach() for made in (method.to_keys, method.to_queries))
    for i in range(12):
        for j in range(12):
            row = int(found["row of the keys' table by pair"][i, j])
            back = int(found["row of the queries' table, paper by pair"][i, j])
            score = (q[0, 0, i] + to_queries[back]) @ k[0, 0, j] + q[0, 0, i] @ to_keys[row]
            assert float(scores[i, j]) == pytest.approx(float(score), abs=1e-12)


def test_looking_changes_no_random_state():
    method = mp.Deberta(8, 1, 8, reach=20)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    explore.bucket_map(method)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(("queries", "memory"), [(5, 0), (4, 3), (6, 11)])
def test_the_shift_reads_what_the_authors_shift_reads(queries: int, memory: int):
    found = explore.shift_map(mp.TransformerXL(8, 1, 8), queries=queries, memory=memory)
    keys = queries + memory
    # Transformer-XL: columns klen − 1 … 0, a column of zeros before them, and the rows read on by one.
    columns = np.tile(np.arange(keys - 1, -1, -1.0), (queries, 1))
    padded = np.concatenate([np.full((queries, 1), -99.0), columns], 1).reshape(keys + 1, queries)
    shifted = padded[1:].reshape(queries, keys)
    seen = np.arange(keys) <= memory + np.arange(queries)[:, None]
    assert np.array_equal(found["Transformer-XL"][seen], shifted[seen])
    assert np.isnan(found["Transformer-XL"][~seen]).all()
    assert not (shifted[~seen] == found["XLNet"][~seen]).any()
    # XLNet: columns klen … −qlen + 1.
    wide = np.tile(np.arange(keys, -queries, -1.0), (queries, 1))
    shifted = wide.reshape(keys + queries, queries)[1:].reshape(queries, keys + queries - 1)[:, :keys]
    assert np.array_equal(found["XLNet"], shifted)
    for i in range(queries):
        for j in range(keys):
            assert found["XLNet"][i, j] == memory + i - j


def test_a_reach_clamps_the_distances():
    found = explore.shift_map(mp.TransformerXL(8, 1, 8, reach=4), queries=6, memory=3)["XLNet"]
    expected = [[min(max(3 + i - j, -4), 4) for j in range(9)] for i in range(6)]
    assert found.tolist() == expected


def test_other_tables_are_read_too():
    found = explore.bucket_map(mp.Shaw(8, reach=3), length=9)
    for name in ("row of the keys' table", "row of the values' table"):
        assert by_distance(found, name) == {at: min(max(-at, -3), 3) + 3 for at in range(-8, 9)}
    assert "7 of 7 rows are read, 5 of them" in found.says
    assert "33 of 33 rows are read" in explore.bucket_map(mp.TransformerXL(8, 1, 8), length=17).says


def test_what_is_said_of_causal_buckets_leaves_hidden_keys_out():
    found = explore.bucket_map(mp.T5Bias(8))
    assert found.says == (
        "At distances 0 … 255 32 of 32 rows are read, 16 of them at one distance alone; keys ahead are hidden. From "
        "113 behind on all read row 31."
    )
    assert found["distances that share it"][:17].tolist() == [1] * 16 + [3]


@pytest.mark.parametrize("length", [2, 20, 113])
def test_a_short_map_says_where_the_last_row_begins(length: int):
    found = explore.bucket_map(mp.T5Bias(8), length=length)
    assert f"Row 31, which all distances share from 113 behind on, is not reached within {length} tokens" in found.says
    assert "From" not in found.says


def test_where_the_last_row_begins_is_where_the_buckets_end():
    for method, begin in ((mp.T5Bias(8, bidirectional=True), 91), (mp.Shaw(8, reach=3), 3)):
        assert f"From {begin} behind on all read row" in explore.bucket_map(method, length=200).says
    # Without a reach every distance has a row of its own.
    assert "behind on" not in explore.bucket_map(mp.TransformerXL(8, 1, 8), length=17).says


def test_what_looks_nothing_up_is_refused():
    for given in (mp.Rope(8), mp.T5Bias, mp.Alibi(8)):
        with pytest.raises(TypeError, match="looks up by distance"):
            explore.bucket_map(given)
    with pytest.raises(TypeError, match="give a TransformerXL"):
        explore.shift_map(mp.Shaw(8))
    with pytest.raises(ValueError, match="length must be at least 2"):
        explore.bucket_map(mp.T5Bias(8), length=1)


def test_steps_are_upright_and_say_where_single_rows_end_and_the_last_begins():
    found = explore.bucket_map(mp.T5Bias(8))
    picture: Any = found.pictures[1]
    points = [(point.x, point.y) for point in picture.panel.curves[0].points]
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in itertools.pairwise(points))
    assert {(x, y) for x, y in points} >= set(zip(range(256), found["bucket"][255:].tolist(), strict=True))
    rows = found["bucket"][255:]
    alone = [d for d in range(256) if (rows == rows[d]).sum() == 1]
    assert [note[2] for note in picture.notes] == [
        f"distances 0–{max(alone)}: one row each", f"one row from {int((rows < 31).sum())} on",
    ]  # fmt: skip
    assert (max(alone), int((rows < 31).sum())) == (15, 113)
    assert picture.panel.x_name == "distance in tokens"
    both: Any = explore.bucket_map(mp.T5Bias(8, bidirectional=True)).pictures[1]
    assert (both.notes, both.panel.x_name) == ((), "distance in tokens, positive is behind the query")


def test_the_line_of_distance_0_lies_on_distance_0():
    found = explore.shift_map(mp.TransformerXL(8, 1, 8), queries=6, memory=4)
    picture: Any = found.pictures[1]
    ((row, column, last_row, last_column),) = picture.marked
    for query, key in ((row, column), (last_row, last_column)):
        assert found["XLNet"][int(query) - 4, int(key)] == 0
    assert (row, last_row) == (4, 9)
