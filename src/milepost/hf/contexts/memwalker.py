"""MemWalker: a long text as a tree of summaries, walked by the model itself (Chen et al., 2023, arXiv:2310.05029).

Prompts only, so any model that answers will do. The text is cut into segments, each is summarised, summaries are
summarised in groups up to a root; a question then walks down from the root, reads segments, and may turn back. What was
read on the way is kept as a working memory. No prompt is longer than the model's context.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from milepost.hf.model.models import demand_model, device_of
from milepost.seams import demand

Ask = Callable[[str], str]
Count = Callable[[str], int]

SUMMARISE = (
    "Summarise this part of a text in one or two sentences. Keep names, numbers and places.\n\n{text}\n\nSummary:"
)
TRIAGE = (
    "These are summaries of parts of a text:\n{parts}\n\n{memory}Question: {question}\n\nWhich part most likely has "
    "the answer? Reply with its number{back}.\nNumber:"
)
LEAF = (
    "This is a part of a text:\n{text}\n\n{memory}Question: {question}\n\nIf the answer is in what you have read, "
    "reply 'Answer:' and the answer. If it is not, reply 'Back'.\nReply:"
)
MEMORY = "You have read before:\n{memory}\n\n"


@dataclass
class Node:
    """A place in the tree: a segment of the text, or several nodes and what they say together."""

    summary: str
    text: str = ""
    children: list[Node] = field(default_factory=list["Node"])

    @property
    def leaf(self) -> bool:
        """Whether this is a segment of the text itself."""
        return not self.children


@dataclass(frozen=True)
class Walk:
    """The answer, None where none was found; the way, as children chosen and back; how often the model was asked."""

    answer: str | None
    path: tuple[str, ...]
    asked: int


class MemWalker:
    """A tree of summaries over a text, and walks through it.

        walker = MemWalker(ask, text, context=4096)
        walker.answer("Where did she leave the key?").answer

    ask: a function from a prompt to a reply, or `asker(model, tokenizer)`. context: how long a prompt and its reply may
    be together, as `count` counts; count: tokens of a string, by default its words. reply: how much of the context is
    left for the reply. fan: how many summaries share a parent.
    """

    def __init__(
        self, ask: Ask, text: str, context: int, *, count: Count | None = None, reply: int | None = None, fan: int = 8
    ) -> None:  # fmt: skip
        if not callable(ask):
            raise TypeError(
                f"MemWalker(ask={ask!r}): ask is a function from a prompt to a reply; see asker(model, tokenizer)"
            )
        demand.whole(self, "context", context)
        demand.whole(self, "fan", fan, least=2)
        self.ask, self.context, self.fan = ask, context, fan
        self.count: Count = _words if count is None else count
        self.reply = context // 8 if reply is None else reply
        self.asked = 0
        # A leaf shares its prompt with the memory and a question, which take a third of it at most.
        self.segment = (self._room(LEAF) * 2) // 3
        if self.segment < 8:
            raise ValueError(
                f"MemWalker(context={context}): after the instructions and {self.reply} for the reply there is no room "
                f"for a text; raise the context"
            )
        if not text.strip():
            raise ValueError("MemWalker(text=''): there is nothing to read")
        self.root = self._grown([Node(self._summary(part), part) for part in self._cut(text)])

    # The tree

    def _cut(self, text: str) -> list[str]:
        """The text in segments that fit a prompt, cut between words."""
        pieces, found = re.findall(r"\s*\S+", text.rstrip()), list[str]()
        while pieces:
            n = self._fitting(pieces, self.segment)
            found.append("".join(pieces[:n]))
            del pieces[:n]
        return found

    def _fitting(self, pieces: list[str], most: int) -> int:
        """Return how many pieces, one at least, fit; found in a few counts, since a count may run a tokenizer."""

        def size(n: int) -> int:
            return self.count("".join(pieces[:n]))

        low = 1
        while 2 * low <= len(pieces) and size(2 * low) <= most:
            low *= 2
        return low + bisect_right(range(low + 1, min(2 * low, len(pieces) + 1)), most, key=size)

    def _summary(self, text: str) -> str:
        """Return what the model makes of a text: whole words, so few that a prompt has room for `fan` summaries."""
        pieces = re.findall(r"\S+\s*", " ".join(self._answered(SUMMARISE.format(text=text)).split()))
        return "".join(pieces[: self._fitting(pieces, self._room(TRIAGE) * 2 // 3 // self.fan - 2)]).strip()

    def _grown(self, nodes: list[Node]) -> Node:
        """Put parents over groups of nodes, until one is left."""
        while len(nodes) > 1:
            groups = [nodes[n : n + self.fan] for n in range(0, len(nodes), self.fan)]
            nodes = [self._joined(group) for group in groups]
        return nodes[0]

    def _joined(self, group: list[Node]) -> Node:
        if len(group) == 1:
            return group[0]
        return Node(self._summary("\n".join(node.summary for node in group)), children=group)

    # A walk

    def answer(self, question: str, steps: int = 64) -> Walk:
        """Walk from the root until a segment answers the question, or nothing is left to read, or steps are used up."""
        if not question.strip():
            raise ValueError("MemWalker.answer(question=''): ask something")
        if self.count(question) > self._room(LEAF) - self.segment - 2:
            raise ValueError(
                f"MemWalker.answer: the question takes {self.count(question)} of the {self._room(LEAF) - self.segment} "
                f"that are left beside a segment; ask shorter, or raise the context"
            )
        before, path, memory = self.asked, list[str](), list[str]()
        trail, closed = [self.root], set[int]()
        for _ in range(steps):
            node = trail[-1]
            if node.leaf:
                found = self._read(node, question, memory)
                if found is not None:
                    return Walk(found, (*path, "answer"), self.asked - before)
                closed.add(id(node))
                memory.append(node.summary)
            opened = [child for child in node.children if id(child) not in closed]
            chosen = self._choose(opened, question, memory, len(trail) > 1) if opened else None
            if chosen is None:
                closed.add(id(trail.pop()))
                path.append("back")
                if not trail:
                    break
            else:
                path.append(str(node.children.index(chosen) + 1))
                trail.append(chosen)
        return Walk(None, tuple(path), self.asked - before)

    def _choose(self, nodes: list[Node], question: str, memory: list[str], back: bool) -> Node | None:
        """The child that the model names, None for back; without a number it is asked again, then it is the first."""
        parts = "\n".join(f"{n}. {node.summary}" for n, node in enumerate(nodes, 1))
        words = ", or 0 to go back" if back else ""
        prompt = self._with(TRIAGE, memory, parts=parts, question=question, back=words)
        for _ in range(2):
            number = re.search(r"\d+", self._answered(prompt))
            if number is not None and int(number[0]) <= len(nodes):
                if int(number[0]) > 0:
                    return nodes[int(number[0]) - 1]
                if back:
                    return None
        return nodes[0]

    def _read(self, node: Node, question: str, memory: list[str]) -> str | None:
        said = self._answered(self._with(LEAF, memory, text=node.text, question=question))
        found = re.search(r"answer\s*:\s*(.+)", said, re.IGNORECASE | re.DOTALL)
        return found[1].strip() if found else None

    def _with(self, form: str, memory: list[str], **given: str) -> str:
        """A prompt with as much of the memory as fits, the latest last."""
        bare = form.format(memory="", **given)
        room = self._room(bare) - self.count(MEMORY) - 1
        kept: list[str] = []
        for line in reversed(memory):
            room -= self.count(line) + 1
            if room < 0:
                break
            kept.insert(0, line)
        return form.format(memory=MEMORY.format(memory="\n".join(kept)) if kept else "", **given)

    def _answered(self, prompt: str) -> str:
        if self._room(prompt) < 0:
            raise ValueError(
                f"MemWalker: a prompt of {self.count(prompt)} does not fit a context of {self.context} with "
                f"{self.reply} for the reply; raise the context, or lower fan"
            )
        self.asked += 1
        return self.ask(prompt)

    def _room(self, form: str) -> int:
        """What a form leaves of the context for what is put into it."""
        return self.context - self.reply - self.count(form)


def _words(text: str) -> int:
    return len(text.split())


def asker(model: Any, tokenizer: Any, new_tokens: int = 128) -> Ask:
    """A function from a prompt to a reply, made of a model of transformers; with its chat template where it has one."""
    demand_model("asker", model)

    def ask(prompt: str) -> str:
        if getattr(tokenizer, "chat_template", None):
            turns = [{"role": "user", "content": prompt}]
            form: dict[str, Any] = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
            made = tokenizer.apply_chat_template(turns, **form)
        else:
            made = tokenizer(prompt, return_tensors="pt")
        given = {name: made[name].to(device_of(model)) for name in ("input_ids", "attention_mask") if name in made}
        out = model.generate(**given, max_new_tokens=new_tokens, do_sample=False)
        return str(tokenizer.decode(out[0, given["input_ids"].shape[1] :], skip_special_tokens=True))

    return ask
