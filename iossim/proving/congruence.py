"""Terms up to equality: classes of equal terms, closed under congruence (an e-graph).

A term is a function of classes; equal arguments make equal terms. Classes are numbered in the order in which they are
made, so everything here is the same in every process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Symbol(NamedTuple):
    """A function of terms: output ``output`` of ``outputs`` of an op with attributes of these numbers, or a name."""

    kind: str
    attributes: tuple[int, ...] = ()
    output: int = 0
    outputs: int = 1


class Term(NamedTuple):
    symbol: Symbol
    arguments: tuple[int, ...]


class Congruence:
    """Classes of equal terms."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._class_of: dict[Term, int] = {}
        self._terms: dict[int, dict[Term, None]] = {}
        self._readers: dict[int, dict[Term, None]] = {}
        #: The first term of each class, in the order in which they were made.
        self.first: list[Term] = []

    def __len__(self) -> int:
        return len(self._class_of)

    def find(self, number: int) -> int:
        """The class that a number stands for by now."""
        while self._parent[number] != number:
            self._parent[number] = self._parent[self._parent[number]]
            number = self._parent[number]
        return number

    def canonical(self, term: Term) -> Term:
        return Term(term.symbol, tuple(map(self.find, term.arguments)))

    def get(self, term: Term) -> int | None:
        """The class of a term, None if there is no such term yet."""
        found = self._class_of.get(self.canonical(term))
        return None if found is None else self.find(found)

    def add(self, term: Term) -> int:
        """The class of a term, a new one for one that is not there."""
        term = self.canonical(term)
        if term in self._class_of:
            return self.find(self._class_of[term])
        number = len(self._parent)
        self._parent.append(number)
        self.first.append(term)
        self._class_of[term] = number
        self._terms[number] = {term: None}
        self._readers[number] = {}
        for argument in term.arguments:
            self._readers[argument][term] = None
        return number

    def merge(self, a: int, b: int) -> bool:
        """Two classes are equal from here on, and all that follows by congruence; whether that is new."""
        waiting = [(a, b)]
        merged = False
        while waiting:
            a, b = map(self.find, waiting.pop())
            if a == b:
                continue
            merged = True
            kept, gone = min(a, b), max(a, b)
            self._parent[gone] = kept
            self._terms[kept].update(self._terms.pop(gone))
            readers = self._readers.pop(gone)
            for term in readers:
                number = self._class_of.pop(term, None)
                if number is None:
                    continue
                number = self.find(number)
                self._terms[number].pop(term, None)
                now = self.canonical(term)
                other = self._class_of.setdefault(now, number)
                self._terms[self.find(other)].setdefault(now, None)
                for argument in now.arguments:
                    if argument != kept:
                        self._readers[argument].pop(term, None)
                        self._readers[argument][now] = None
                self._readers[kept].pop(term, None)
                self._readers[kept][now] = None
                if self.find(other) != number:
                    waiting.append((other, number))
        return merged

    def terms(self, number: int) -> tuple[Term, ...]:
        """The terms of a class."""
        return tuple(self._terms[self.find(number)])

    def all_terms(self) -> Iterator[tuple[int, Term]]:
        """Each term with its class."""
        for number, terms in self._terms.items():
            for term in terms:
                yield number, term
