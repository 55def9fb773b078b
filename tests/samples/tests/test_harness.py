"""Tests of what judges the samples: the rule, the masks, and the comparison."""

import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import cases  # noqa: E402
from case import Case, Part  # noqa: E402
from cloud import filled  # noqa: E402
from collection import Repository, judge, unpack  # noqa: E402
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


class Packages(unittest.TestCase):
    """Code that is deployed."""

    def repository(self, files):
        """A repository with these files."""
        place = tempfile.mkdtemp()
        self.addCleanup(subprocess.run, ["rm", "-rf", place], check=True)

        def git(*words):
            named = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
            done = subprocess.run(
                ["git", "-C", place, *named, *words], check=True, capture_output=True, text=True
            )
            return done.stdout.strip()

        git("init", "-q")
        for name, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(place, name)), exist_ok=True)
            with open(os.path.join(place, name), "w", encoding="utf-8") as file:
                file.write(text)
        git("add", ".")
        git("commit", "-q", "-m", "files")
        return Repository(place, git("rev-parse", "HEAD"))

    def files(self, **more):
        """The files of a case's package, with their texts."""
        repositories = {
            "one": self.repository({"a/b.py": "b", "a/c.py": "c", "d/e.py": "e"}),
            "two": self.repository({"p/q.py": "q"}),
        }
        with tempfile.TemporaryDirectory() as scratch:
            place = unpack(repositories, case(collection="one", **more), scratch + "/out")
            out = {}
            for directory, _, names in os.walk(place):
                for name in names:
                    path = os.path.join(directory, name)
                    with open(path, encoding="utf-8") as file:
                        out[os.path.relpath(path, place)] = file.read()
            return out

    def test_a_file_is_deployed_with_those_beside_it(self):
        self.assertEqual(self.files(), {"b.py": "b", "c.py": "c"})

    def test_parts_have_their_places(self):
        parts = ("a/b.py", "d", Part("p/q.py", "r/s", "two"))
        self.assertEqual(self.files(parts=parts), {"b.py": "b", "e.py": "e", "r/s/q.py": "q"})

    def test_an_adapter_has_the_handler_and_the_file_stays(self):
        found = self.files(parts=("a/b.py",), adapter="servicer.py")
        self.assertEqual(found["b.py"], "b")
        self.assertIn("def handler(event, context)", found["servicer.py"])
        one = case(adapter="servicer.py", handler="handler")
        self.assertEqual(one.dotted, "servicer.handler")

    def test_contents_are_bytes(self):
        self.assertEqual(self.repository({"x/y": "text"}).content("x/y"), b"text")


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

    def test_names_that_a_mask_makes_the_same_keep_their_values(self):
        one, other = {"id1": "b", "id7": "a", "x": 0}, {"id4": "a", "id5": "b", "x": 0}
        first, second = (
            masked({"results": [], "found": found}, case(texts=(r"id\d",))) for found in (one, other)
        )
        self.assertEqual(first["found"], {MASK: "a", MASK + " 2": "b", "x": 0})
        self.assertEqual(first, second)

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
        self.assertTrue(check(case(shows="Hello"), result, "stock"))
        result["effects"] = {"s3": "Hello"}
        self.assertFalse(check(case(shows="Hello"), result, "stock"))

    def test_a_known_difference_has_a_text_of_its_own(self):
        result = {"results": [{"answer": "unreachable"}], "effects": {}}
        one = case(shows="Hello", fault="why", fault_shows="unreachable")
        self.assertFalse(check(one, result, "offload"))
        self.assertTrue(check(one, result, "stock"))
        self.assertTrue(check(one, {"results": [{"answer": "Hello"}], "effects": {}}, "offload"))

    def test_an_error_is_a_fault_unless_it_has_to_be(self):
        result = {"results": [{"error": {"errorType": "E"}}]}
        self.assertTrue(check(case(), result, "stock"))
        self.assertFalse(check(case(fails="E"), result, "stock"))
        self.assertTrue(check(case(fails="F"), result, "stock"))
        self.assertTrue(check(case(fails="F"), {"results": [{"answer": 1}]}, "stock"))

    def test_a_known_fault_has_to_be_there(self):
        self.assertEqual(verdict(case(), {}), "ok")
        self.assertEqual(verdict(case(), {"stock": ["x"]}), "FAULT")
        self.assertEqual(verdict(case(), {"outside": ["x"], "stock": ["x"]}), "sample")
        self.assertEqual(verdict(case(fault="why"), {"offload": ["x"]}), "known")
        self.assertEqual(verdict(case(fault="why"), {}), "mended")

    def test_a_known_fault_is_one_of_the_default_mode_only(self):
        for name, expected in (("stock", "FAULT"), ("offload itself", "FAULT"), ("outside", "sample")):
            faults = {"offload": ["x"], name: ["y"]}
            self.assertEqual(verdict(case(fault="why"), faults), expected)

    def test_words_are_replaced_the_longest_first(self):
        words = {"A": "1", "AB": "2"}
        self.assertEqual(filled({"$A": ["$AB"]}, words), {"1": ["2"]})

    def test_every_case_shows_something(self):
        for one in cases.CASES:
            self.assertTrue(one.shows, one.path)
            self.assertTrue(one.events, one.path)


if __name__ == "__main__":
    unittest.main()
