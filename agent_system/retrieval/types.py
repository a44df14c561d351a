"""What the retriever and its users share: passages, and the ways in which a retrieval can fail."""

from __future__ import annotations

from dataclasses import dataclass

#: Response header: identity of index, corpus and encoder together.
FINGERPRINT_HEADER = "X-Index-Fingerprint"
#: Request header: seconds the client will still wait. The server drops a request whose time has run out.
TIMEOUT_HEADER = "X-Request-Timeout"


class RetrievalError(Exception):
    """No passages could be had. An episode that needed them has failed; it has observed nothing."""


class RetrieverUnavailable(RetrievalError):
    """No replica answered: refused or broken connections, or errors of the server, until the attempts were used up."""


class RetrieverOverloaded(RetrieverUnavailable):
    """The server's queue was full (HTTP 429, 503). ``retry_after`` is the server's advice in seconds, or None."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RetrievalTimeout(RetrievalError):
    """The deadline passed before the answer came."""


class BadRetrievalRequest(RetrievalError):
    """The server refused the request as malformed (HTTP 4xx); sending it again would not help."""


class BadRetrievalResponse(RetrievalError):
    """The answer is not in the protocol's form, or comes from another index than the answers before it."""


class IndexProblem(RetrievalError):
    """Index, corpus and encoder do not fit together, or a file of theirs is missing or damaged. Says which."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One retrieved passage.

    Attributes:
        id: identifier of the corpus row.
        title: first line of the row's ``contents``, verbatim: in wiki-18 it stands in double quotes when it holds white space.
        text: the rest of the ``contents``, verbatim.
        score: the index's score; larger is closer.
    """

    id: str
    title: str
    text: str
    score: float

    @classmethod
    def from_contents(cls, row_id: str, contents: str, score: float) -> Passage:
        """Splits the ``contents`` of a corpus row (``title``, newline, ``text``)."""
        title, _, text = contents.partition("\n")
        return cls(row_id, title, text, score)

    @property
    def contents(self) -> str:
        """Title and text as the corpus has them."""
        return f"{self.title}\n{self.text}"

    @property
    def plain_title(self) -> str:
        """The title without the corpus' quotes."""
        quoted = len(self.title) > 1 and self.title[0] == self.title[-1] == '"'
        return self.title[1:-1] if quoted else self.title
