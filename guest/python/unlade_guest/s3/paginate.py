"""Paginators: calls until there is no more, cut where the caller wants it, and resumed."""

from binascii import a2b_base64, b2a_base64

from ..errors import PaginationError
from ..text import decode, encode
from .query import compile, compile_for_caller

# Input tokens, output tokens, more?, limit, results, and what is of the whole.
KEYS = {
    "ListBuckets": (
        "ContinuationToken",
        "ContinuationToken",
        None,
        "MaxBuckets",
        "Buckets",
        "Owner Prefix",
    ),
    "ListDirectoryBuckets": (
        "ContinuationToken",
        "ContinuationToken",
        None,
        "MaxDirectoryBuckets",
        "Buckets",
        "",
    ),
    "ListMultipartUploads": (
        "KeyMarker UploadIdMarker",
        "NextKeyMarker NextUploadIdMarker",
        "IsTruncated",
        "MaxUploads",
        "Uploads CommonPrefixes",
        "RequestCharged Prefix",
    ),
    "ListObjectAnnotations": (
        "ContinuationToken",
        "NextContinuationToken",
        None,
        "MaxAnnotationResults",
        "Annotations",
        "AnnotationCount AnnotationPrefix Bucket Key ObjectVersionId RequestCharged",
    ),
    "ListObjectVersions": (
        "KeyMarker VersionIdMarker",
        "NextKeyMarker NextVersionIdMarker",
        "IsTruncated",
        "MaxKeys",
        "Versions DeleteMarkers CommonPrefixes",
        "RequestCharged Prefix",
    ),
    "ListObjects": (
        "Marker",
        "NextMarker||Contents[-1].Key",
        "IsTruncated",
        "MaxKeys",
        "Contents CommonPrefixes",
        "RequestCharged Prefix",
    ),
    "ListObjectsV2": (
        "ContinuationToken",
        "NextContinuationToken",
        "IsTruncated",
        "MaxKeys",
        "Contents CommonPrefixes",
        "RequestCharged Prefix",
    ),
    "ListParts": (
        "PartNumberMarker",
        "NextPartNumberMarker",
        "IsTruncated",
        "MaxParts",
        "Parts",
        "ChecksumAlgorithm Initiator Owner StorageClass ChecksumType",
    ),
}
TRUNCATED = "boto_truncate_amount"


class Paginator:
    """The result of `get_paginator`."""

    def __init__(self, client, method, operation):
        self._method = getattr(client, method)
        inputs, outputs, self._more, self._limit, results, whole = KEYS[operation]
        self._inputs = inputs.split()
        self._outputs = [compile(output) for output in outputs.split()]
        self._results = results.split()
        self._whole = whole.split()

    @property
    def result_keys(self):
        """The result keys of the pages."""
        return [compile(name) for name in self._results]

    def paginate(self, **kwargs):
        """Pages; `PaginationConfig` has MaxItems, PageSize and StartingToken."""
        config = dict(kwargs.pop("PaginationConfig", None) or {})
        most = config.get("MaxItems")
        size = config.get("PageSize")
        if size is not None:
            size = int(size)
        most = int(most) if most is not None else None
        return PageIterator(self, most, config.get("StartingToken"), size, kwargs)


class PageIterator:
    """Pages, made when they are asked for."""

    def __init__(self, paginator, most, start, size, kwargs):
        self._of = paginator
        self._most = most
        self._start = start
        self._size = size
        self._kwargs = kwargs
        self._resume = None
        self._non_aggregate_part = {}

    @property
    def result_keys(self):
        """The result keys of the pages."""
        return self._of.result_keys

    @property
    def resume_token(self):
        """Where to go on, once the pages were cut."""
        return self._resume

    @resume_token.setter
    def resume_token(self, value):
        names = set(self._of._inputs)
        if not isinstance(value, dict) or set(value) - {TRUNCATED} != names:
            raise ValueError("Bad starting token: %s" % (value,))
        self._resume = b2a_base64(encode(value).encode(), newline=False).decode()

    @property
    def non_aggregate_part(self):
        """The members of the first page that are not aggregated."""
        return self._non_aggregate_part

    def __iter__(self):
        of = self._of
        kwargs = self._kwargs
        first = of._results[0]
        token = dict.fromkeys(of._inputs)
        skipped = 0
        if self._start is not None:
            token, skipped = self._starting()
            _inject(kwargs, token)
        if self._size is not None:
            kwargs[of._limit] = self._size
        seen, before, is_first = 0, None, True
        while True:
            page = of._method(**kwargs)
            if is_first:
                self._begin(page, skipped)
            else:
                skipped = 0
            is_first = False
            found = page.get(first) or []
            beyond = seen + len(found) - self._most if self._most is not None else 0
            if beyond > 0:
                keep = len(found) - beyond
                page[first] = found[:keep]
                self.resume_token = dict(token, **{TRUNCATED: keep + skipped})
                yield page
                return
            yield page
            seen += len(found)
            token = self._next(page)
            if all(value is None for value in token.values()):
                return
            if self._most is not None and seen == self._most:
                self.resume_token = token
                return
            if before is not None and before == token:
                raise PaginationError(
                    message="The same next token was received twice: %s" % (token,)
                )
            _inject(kwargs, token)
            before = token

    def _begin(self, page, skipped):
        of = self._of
        if self._start is not None:
            first = of._results[0]
            found = page.get(first)
            page[first] = found[skipped:] if isinstance(found, (list, str)) else None
            for name in of._results[1:]:
                page[name] = [] if isinstance(page.get(name), list) else None
        self._non_aggregate_part = {name: page.get(name) for name in of._whole}

    def _next(self, page):
        of = self._of
        if of._more is not None and not page.get(of._more):
            return {}
        return {name: output.search(page) or None for name, output in zip(of._inputs, of._outputs)}

    def _starting(self):
        """The token to begin with, and how much of its page has been seen."""
        text = self._start
        try:
            token = decode(a2b_base64(text.encode()).decode())
            skipped = token.pop(TRUNCATED, 0)
        except (ValueError, TypeError, AttributeError):
            token, skipped = self._older(text)
        return token, skipped

    def _older(self, text):
        """Tokens as `a___b___2`, or one that is the service's own."""
        parts = text.split("___")
        names = self._of._inputs
        skipped = 0
        if len(parts) == len(names) + 1:
            try:
                skipped = int(parts.pop())
            except ValueError:
                parts = [text]
        if len(parts) > len(names):
            raise ValueError("Bad starting token: %s" % text)
        values = [None if part == "None" else part for part in parts]
        values += [None] * (len(names) - len(values))
        return dict(zip(names, values)), skipped

    def search(self, expression):
        """Items that a JMESPath expression finds in the pages."""
        compiled = compile_for_caller(expression)
        for page in self:
            found = compiled.search(page)
            if isinstance(found, list):
                yield from found
            else:
                yield found

    def result_key_iters(self):
        """An iterator of items for each kind of results."""
        from itertools import chain, tee

        return [
            chain.from_iterable((page.get(name) or [] for page in pages))
            for pages, name in zip(tee(self, len(self._of._results)), self._of._results)
        ]

    def build_full_result(self):
        """Everything as one page."""
        whole = {}
        for page in self:
            for name in self._of._results:
                found = page.get(name)
                if found is None:
                    continue
                if whole.get(name) is None:
                    whole[name] = found
                else:
                    whole[name] = whole[name] + found
        whole.update(self._non_aggregate_part)
        if self._resume is not None:
            whole["NextToken"] = self._resume
        return whole


def _inject(kwargs, token):
    for name, value in token.items():
        if value is not None and value != "None":
            kwargs[name] = value
        else:
            kwargs.pop(name, None)
