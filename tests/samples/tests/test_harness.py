"""Tests of what judges the samples: the rule, the masks, and the comparison."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import cases  # noqa: E402
from case import Case  # noqa: E402
from cloud import filled  # noqa: E402
from collection import judge  # noqa: E402
from compare import MASK, Unused, differences, masked  # noqa: E402
from run import check, verdict  # noqa: E402

TAKEN = b"import boto3\ndef handler(event, context):\n    return boto3.client('s3')\n"


def case(**more):
    """A case with these members."""
    return Case("a/b.py", "s3", ({},), **more)


class Rule(unittest.TestCase):
    """The rule that takes files."""

    def test_a_handler_with_boto3_is_taken(self):
        self.assertIsNone(judge(TAKEN, set()))

    def test_each_part_of_the_rule_refuses(self):
        for old, new, why in (
            (b"context", b"context, more", "no handler"),
            (b"event", b"self", "no handler"),
            (b"import boto3", b"boto3 = None", "without boto3"),
            (b"import boto3", b"import boto3, pandas", "other packages"),
            (b"'s3'", b"'kendra'", "other services"),
            (b"'s3'", b"name", "names no service"),
            (b"return", b"print 1", "no Python 3"),
        ):
            self.assertIn(why, judge(TAKEN.replace(old, new), set()))

    def test_a_file_beside_is_no_package(self):
        self.assertIsNone(
            judge(TAKEN.replace(b"import boto3", b"import boto3, pandas"), {"pandas"})
        )


class Comparison(unittest.TestCase):
    """Masks and differences."""

    def test_what_varies_is_masked_and_nothing_else(self):
        result = {"results": [{"answer": {"body": '{"id": 1, "n": 2}'}}, {"answer": 3}]}
        seen = masked(
            result, case(varies=("results 0 answer body json id",), texts=("an(?=swer)",))
        )
        self.assertEqual(
            seen["results"],
            [{MASK + "swer": {"body": '{"id": "(varies)", "n": 2}'}}, {MASK + "swer": 3}],
        )

    def test_a_mask_without_use_is_refused(self):
        for more in ({"varies": ("results 7",)}, {"texts": ("absent",)}):
            with self.assertRaises(Unused):
                masked({"results": [1]}, case(**more))

    def test_every_difference_is_found(self):
        same = {"a": [1, {"b": None}], "c": "x"}
        self.assertEqual(list(differences(same, {"a": [1, {"b": None}], "c": "x"})), [])
        for other in (
            {"a": [1, {"b": 0}], "c": "x"},
            {"a": [1], "c": "x"},
            {"a": [True, {"b": None}], "c": "x"},
            {"a": [1, {"b": None}]},
            {"a": [1, {"b": None}], "c": "x", "d": 1},
        ):
            self.assertEqual(len(list(differences(same, other))), 1, other)

    def test_items_of_tables_have_no_order_and_messages_have(self):
        one = {"effects": {"dynamodb": {"t": [{"a": 2}, {"a": 1}]}, "sqs": {"q": [2, 1]}}}
        seen = masked(one, case())
        self.assertEqual(seen["effects"]["dynamodb"]["t"], [{"a": 1}, {"a": 2}])
        self.assertEqual(seen["effects"]["sqs"]["q"], [2, 1])


class Judgement(unittest.TestCase):
    """Results by themselves."""

    def test_a_handler_that_did_nothing_is_a_fault(self):
        result = {"results": [{"answer": None}], "effects": {}}
        self.assertTrue(check(case(shows="Hello"), result))
        result["effects"] = {"s3": "Hello"}
        self.assertFalse(check(case(shows="Hello"), result))

    def test_an_error_is_a_fault_unless_it_has_to_be(self):
        result = {"results": [{"error": {"errorType": "E"}}]}
        self.assertTrue(check(case(), result))
        self.assertFalse(check(case(fails="E"), result))
        self.assertTrue(check(case(fails="F"), result))
        self.assertTrue(check(case(fails="F"), {"results": [{"answer": 1}]}))

    def test_a_known_fault_has_to_be_there(self):
        self.assertEqual(verdict(case(), {}), "ok")
        self.assertEqual(verdict(case(), {"stock": ["x"]}), "FAULT")
        self.assertEqual(verdict(case(), {"outside": ["x"], "stock": ["x"]}), "sample")
        self.assertEqual(verdict(case(fault="why"), {"stock": ["x"]}), "known")
        self.assertEqual(verdict(case(fault="why"), {}), "mended")

    def test_words_are_replaced_the_longest_first(self):
        words = {"A": "1", "AB": "2"}
        self.assertEqual(filled({"$A": ["$AB"]}, words), {"1": ["2"]})

    def test_every_case_shows_something(self):
        for one in cases.CASES:
            self.assertTrue(one.shows, one.path)
            self.assertTrue(one.events, one.path)


if __name__ == "__main__":
    unittest.main()
