"""x-transformers beside the lab: its ALiBi and T5, trained and judged as the lab's own rows were, compared in pairs.

    milepost compare alibi t5 --size base --text enwik8.gz --search 3 --seeds 3 --out out/compare
    python examples/beside_x_transformers.py --beside out/compare --text enwik8.gz --jobs 3

All but the model is as in the lab's store: batches, steps, the rates that are tried and how many, seeds, windows. So
differences are taken window by window; beside.json in --out has their intervals over windows and over seeds. Stop it at
any moment: rerun the command to resume. When all is done it needs no text, and only prints.

The model is x-transformers' own as it comes, with a SwiGLU. Besides positions it differs from the lab's in this:
LayerNorm, not RMSNorm; queries and keys are not normed; the SwiGLU has biases; T5's table starts at 1 and is multiplied
by √64, the lab's starts at 0.02. With --alike it has RMSNorm and normed queries and keys too. The lab's --size base
starts its matrices as x-transformers does, and has an output matrix of its own too; other sizes do not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from milepost.lab.cells.cell import Cell
from milepost.lab.cells.store import Store
from milepost.lab.command.asked import corpus_of, engine_of
from milepost.lab.command.progress import Watched
from milepost.lab.exported import opened
from milepost.lab.report import gather, to_json
from milepost.lab.schemes.choices import is_open
from milepost.lab.statistics.findings import Findings, Row
from milepost.lab.statistics.measures import Difference, paired
from milepost.lab.statistics.table import difference_in_words, in_words
from milepost.lab.sweep.recorded import recorded
from milepost.lab.sweep.search import rounds_of_rates, with_rates
from milepost.lab.sweep.sweep import Sweep, missing, run
from milepost.lab.text.corpus import Corpus
from milepost.lab.training.model import Shape
from milepost.lab.training.reader import Reader

PEERS: dict[str, dict[str, Any]] = {
    "rope": {"rotary_pos_emb": True},
    "alibi": {"alibi_pos_bias": True},
    "t5": {"rel_pos_bias": True},
}
"""The schemes that both have, with what x-transformers calls them."""
ALIKE = {"use_rmsnorm": True, "attn_qk_rmsnorm": True}
"""What x-transformers has of the lab's model, if asked for."""
SCORES = 1 << 26
"""Scores of a layer that are held at once where a model is judged; x-transformers keeps those of all layers."""
PROTOCOLS = {
    "windows": "bits per byte over windows that do not overlap, by length",
    "recall": "bits saved on random bytes that come again, by distance",
    "passages": "bits saved on passages of the text that come again, by distance",
}


class Peer(Reader):
    """A model of x-transformers under the lab's trainer and judge."""

    def __init__(self, name: str, shape: Shape, length: int, alike: bool) -> None:
        from x_transformers import Decoder, TransformerWrapper

        super().__init__()
        self.heads, self.said = shape.heads, {**PEERS[name], **(ALIKE if alike else {})}
        layers: Any = Decoder(
            dim=shape.width, depth=shape.layers, heads=shape.heads, attn_dim_head=shape.dim,
            attn_kv_heads=shape.groups, ff_glu=True, ff_swish=True, ff_mult=shape.inner / shape.width, **self.said,
        )  # fmt: skip
        wrapper: Any = TransformerWrapper
        self.whole: Any = wrapper(
            num_tokens=shape.vocabulary, max_seq_len=length, attn_layers=layers, use_abs_pos_emb=False
        )
        self.position: nn.Module | None = layers.rel_pos
        if self.position is not None:
            # ALiBi keeps its bias once it was made; made before it is compiled, it is compiled once.
            self.position(length, length)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.whole(tokens)

    def states(self, tokens: Tensor) -> Tensor:
        """In pieces where texts are long, by x-transformers' own cache: its scores at 16,384 would fill a GPU."""
        length = tokens.shape[1]
        rows, piece = max(1, SCORES // (self.heads * length**2)), max(1, SCORES // (self.heads * length))
        return torch.cat([torch.cat([*self._pieces(part, piece)], 1) for part in tokens.split(rows)])

    def _pieces(self, tokens: Tensor, piece: int) -> Iterator[Tensor]:
        cache: Any = None
        for part in tokens.split(piece, 1):
            states, cache = self.whole(
                part, cache=cache, input_not_include_cache=True, cache_age=part.shape[1],
                return_embeddings_and_intermediates=True,
            )  # fmt: skip
            for layer in cache.attn_intermediates:
                # Of what it keeps, keys and values are all that the next piece needs.
                layer.qk_similarities = layer.pre_softmax_attn = layer.post_softmax_attn = None
            yield states

    def logits(self, states: Tensor) -> Tensor:
        return self.whole.to_logits(states)

    def learned(self) -> Iterable[nn.Parameter]:
        return () if self.position is None else self.position.parameters()

    def biases(self) -> Iterable[nn.Parameter]:
        return self.learned()

    def equation(self) -> str:
        return f"x-transformers {', '.join(f'{name}={value}' for name, value in self.said.items())}"


@dataclass(frozen=True)
class PeerCell(Cell):
    """A cell of the lab with a model of x-transformers in it; the name is that of the lab's scheme which it is."""

    library: str = ""
    """The version, which is part of the key: another one is trained anew."""
    alike: bool = False

    def model(self) -> Reader:
        torch.manual_seed(self.seed)
        return Peer(self.name, self.shape, self.recipe.length, self.alike)


@dataclass(frozen=True)
class Peers(Sweep):
    """A sweep of the lab with x-transformers in every cell."""

    alike: bool = False

    def cells(self) -> list[Cell]:
        library = f"x-transformers {version('x-transformers')}"
        return [PeerCell(**_plain(cell), library=library, alike=self.alike) for cell in super().cells()]


def _plain(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


def beside(sweep: Sweep, names: Sequence[str], alike: bool) -> Peers:
    """What the lab was asked for, asked of x-transformers; its rows without training are none of those."""
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise ValueError(f"{unknown[0]}: of x-transformers there are {', '.join(PEERS)}")
    # How the lab's model starts, and what its output is, says nothing of this one: no reason to train it anew.
    shape = replace(sweep.size.shape, normed=True, tied=True, start="small")
    peers = replace(Peers(**_plain(sweep), alike=alike), size=replace(sweep.size, shape=shape))
    return replace(peers, schemes=tuple(names), free=False, every=False, tune=False, rows=(), tasks=(), own=())


def text_of(sweep: Sweep, path: Path | None) -> Corpus:
    """The text of the lab's sweep, cut as it was there; another one is refused."""
    third = bool(sweep.search or sweep.tune or any(is_open(row) for _, row in sweep.rows))
    known = sweep.corpus.facts
    found = corpus_of(path, None, [], third).first(known.train_bytes or None)
    if (found.digest, found.chosen_by) != (known.digest, known.chosen_by):
        raise ValueError(f"--text {path}: these are not the bytes that the lab read, {known.source}; give those")
    return found


def worked(sweep: Sweep, peers: Sweep, store: Store, asked: argparse.Namespace) -> Sweep:
    """Choose rates as the lab does, train and judge; returns the sweep with the rates that were chosen."""
    engine = engine_of("local", asked.out, asked.device, asked.jobs)

    def stage(cells: Sequence[Cell]) -> None:
        if missing(peers, store, cells):
            with Watched(cells) as watched:
                run(replace(peers, corpus=text_of(sweep, asked.text)), store, engine, watched, cells)

    for cells in rounds_of_rates(peers, store):
        stage(cells)
    peers = with_rates(peers, store)
    stage(peers.cells())
    return peers


def rows_of(store: Store, sweep: Sweep, names: Sequence[str]) -> list[Row]:
    """The lab's rows of these names, or all that were trained; a row without training is `rope: ReRoPE, pivot`."""
    schemes = dict.fromkeys([*sweep.schemes, *(name.partition(": ")[0] for name in names)])
    known = {
        f"{row.name}: {row.variant}" if row.variant else row.name: row
        for row in gather(store, replace(sweep, schemes=tuple(schemes))).rows
    }
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"--against {unknown[0]!r}: the lab's store has no such row; there are {'; '.join(known)}")
    return [known[name] for name in names] if names else [row for row in known.values() if not row.variant]


def difference(row: Row, peer: Row, protocol: str, length: int) -> Difference | None:
    """The lab's row less x-transformers', on the same windows."""
    one, other = row.at(protocol, length), peer.at(protocol, length)
    return None if one is None or other is None else paired(one, other)


def tables(found: Findings, rows: Sequence[Row], alike: bool) -> Iterator[str]:
    """What is printed: the scores of each model of x-transformers, and the lab's rows less those, by protocol."""
    width = max(len(row.label) for row in (*rows, *found.rows)) + 16
    for peer in found.rows:
        tried = [each for each in found.tried if each.name == peer.name]
        rates = next((f", the best rate of {len(tried)}: {each.setting}" for each in tried if each.chosen), "")
        made = f"{peer.base} of x-transformers{' with --alike' if alike else ''}, {peer.parameters:,} numbers"
        yield f"\n{made}, seeds: {len(peer.seeds)}{rates}"
        for protocol, title in PROTOCOLS.items():
            if lengths := found.lengths(protocol):
                yield f"\n  {title}\n{'':<{width}}" + _line(f"{length:,}" for length in lengths)
                yield f"{'    x-transformers':<{width}}" + _line(in_words(peer.at(protocol, at)) for at in lengths)
                for row in rows:
                    pairs = (difference(row, peer, protocol, at) for at in lengths)
                    yield f"{f'    {row.label}, less it':<{width}}" + _line(map(_marked, pairs))


def _line(cells: Iterable[str]) -> str:
    return "".join(f"{cell:>17}" for cell in cells)


def _marked(each: Difference | None) -> str:
    """A difference, with a star where it is clear of zero by every interval there is."""
    return "" if each is None else difference_in_words(each) + ("*" if each.sign else " ")


def written(found: Findings, rows: Sequence[Row]) -> dict[str, Any]:
    """All that was found, for a file: x-transformers' rows as the lab writes its own, and every difference."""
    pairs = [
        {"row": row.label, "peer": peer.base, "protocol": protocol, "length": length, "mean": each.mean,
         "half_over_windows": each.windows, "half_over_seeds": each.seeds, "seeds": each.count}
        for peer in found.rows for row in rows for protocol, scores in peer.scores.items() for length in scores
        if (each := difference(row, peer, protocol, length)) is not None
    ]  # fmt: skip
    return {"peers": json.loads(to_json(found)), "differences": pairs}


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", default=["alibi", "t5"], help=f"of {', '.join(PEERS)}; alibi and t5")
    parser.add_argument("--beside", type=Path, required=True, metavar="OUT", help="the --out of a milepost compare")
    parser.add_argument("--text", type=Path, help="the text of that compare; milepost's own if not given")
    parser.add_argument("--out", type=Path, default=Path("out/x-transformers"), help="scores and checkpoints")
    parser.add_argument("--against", nargs="+", default=[], help="rows of the lab; all that were trained if not given")
    parser.add_argument("--alike", action="store_true", help="with RMSNorm, and normed queries and keys")
    parser.add_argument("--jobs", type=int, default=1, help="models at the same time")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and judge what is not done yet, then compare."""
    asked = options_of(arguments)
    theirs, store = opened(asked.beside), Store(asked.out / "lab.sqlite")
    sweep, _ = recorded(theirs)
    peers = worked(sweep, beside(sweep, asked.peers, asked.alike), store, asked)
    found, rows = gather(store, peers, " ".join(sys.argv)), rows_of(theirs, sweep, asked.against)
    path = asked.out / ("alike.json" if asked.alike else "beside.json")
    path.write_text(json.dumps(written(found, rows), ensure_ascii=False, indent=2), encoding="utf-8")
    print(*tables(found, rows, asked.alike), sep="\n")
    print(f"\n*: clear of zero by its intervals, of which the wider is shown. written: {path}")
    theirs.close()
    store.close()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; what was done is kept; rerun the command to resume")
    except (ValueError, OSError, RuntimeError) as error:
        sys.exit(f"beside_x_transformers: {error}")
