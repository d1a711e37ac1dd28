"""Tests of the checks beside this file."""
import contextlib
import io
import tempfile
import unittest
from pathlib import Path

import assertions
import links
import ratchet
import source
import vocabulary

RUST = '''
//! Who has it.
use std::fmt;

/// A "quote" in a comment, and /* no block.
fn first(c: char) -> bool {
    assert!(c != '"');
    debug_assert_eq!(1, 1, "assert!( in a string");
    c == '\\'' || r#"raw " string"#.contains("}")
}

#[cfg(test)]
use std::io;

#[cfg(test)]
#[path = "elsewhere.rs"]
mod stories;

#[cfg(test)]
mod tests {
    mod inner;
    #[test]
    fn second() {
        assert!("}".len() == 1);
    }
}

#[cfg(test)]
mod more;

fn third<'a>(text: &'a str) -> &'a str {
    text
}
'''


class Sources(unittest.TestCase):
    def test_test_items_are_removed_and_their_modules_named(self):
        text, modules = source.without_tests(RUST)
        self.assertEqual(modules, [("stories", "elsewhere.rs"), ("more", None)])
        self.assertIn("fn third", text)
        for gone in ["std::io", "mod tests", "fn second", "mod more"]:
            self.assertNotIn(gone, text)

    def test_modules_lie_beside_or_below_their_file(self):
        self.assertEqual(source.module_files(Path("src/lib.rs"), "a", None), [Path("src/a.rs"), Path("src/a")])
        self.assertEqual(source.module_files(Path("src/b.rs"), "a", None), [Path("src/b/a.rs"), Path("src/b/a")])
        self.assertEqual(source.module_files(Path("src/b.rs"), "a", "c.rs"), [Path("src/c.rs")])

    def test_blanking_keeps_lines_and_code(self):
        code = source.blanked(RUST)
        self.assertEqual(code.count("\n"), RUST.count("\n"))
        self.assertIn("fn first(c: char)", code)
        self.assertNotIn("quote", code)
        self.assertNotIn("raw", code)

    def test_comments_and_strings_are_found(self):
        found = list(source.tokens(RUST))
        self.assertIn(("comment", "//! Who has it."), found)
        self.assertIn(("string", 'r#"raw " string"#'), found)
        self.assertIn(("string", '"}"'), found)


class Assertions(unittest.TestCase):
    def test_assertions_and_functions_of_code_alone_count(self):
        self.assertEqual(assertions.count(source.without_tests(RUST)[0]), (2, 2))


class Words(unittest.TestCase):
    def test_words_count_whole_and_in_any_case(self):
        words = lambda text: [found[0] for found in vocabulary.WORDS.finditer(text)]
        self.assertEqual(words("Who told whoever? The whole folder."), ["Who", "told", "whoever", "folder"])
        self.assertEqual(words("hand-over handed over handing over giving back on line"),
                         ["hand-over", "handed over", "giving back", "on line"])

    def test_code_is_no_prose(self):
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "a.rs"
            file.write_text('// who\nfn who() { "nobody" }\n/* a\n ghost */\n')
            self.assertEqual(list(vocabulary.occurrences(file)), [(1, "who"), (2, "nobody"), (4, "ghost")])


class Ratchet(unittest.TestCase):
    def test_more_than_the_maximum_and_new_names_are_problems(self):
        self.assertEqual(ratchet.problems({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 0}),
                         ["b: 3, at most 2", "c: 0, and the table has no row"])
        self.assertEqual(ratchet.problems({"a": 1, "gone": 5}, {"a": 0}), [])

    def test_counts_replace_the_table_only_if_none_rose(self):
        self.assertTrue(ratchet.may_replace({"a": 3, "b": 2}, {"a": 3, "b": 1}))
        self.assertFalse(ratchet.may_replace({"a": 3, "b": 2}, {"a": 4, "b": 1}))
        self.assertTrue(ratchet.may_replace({"a": 3}, {"b": 2, "c": 1}), "a crate that was split")
        self.assertFalse(ratchet.may_replace({"a": 3}, {"b": 2, "c": 2}))

    def test_an_update_writes_lower_counts_and_keeps_comments(self):
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "table.txt"
            file.write_text("# why\n5 a\n")
            with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(ratchet.run("x", file, {"a": 6}, "fix", update=True), 1)
                self.assertEqual(ratchet.run("x", file, {"a": 6}, "fix", update=False), 1)
                self.assertEqual(ratchet.run("x", file, {"a": 4}, "fix", update=True), 0)
            self.assertEqual(file.read_text(), "# why\n      4 a\n")
            self.assertEqual(ratchet.read(file), {"a": 4})


class Links(unittest.TestCase):
    PAGE = """# One `two`, three!
## Same
## Same
[here](#one-two-three) [second](#same-1) [gone](#nowhere) [other](b.md#part) [web](https://example.org/x)
[no file](c.md) `[code](d.md)` [no part](b.md#none) [directory](sub/)
```
[fenced](e.md)
```
"""

    def test_links_to_nothing_are_found_with_their_lines(self):
        pages = {Path("docs/b.md"): "## Part\n", Path("docs/sub"): ""}
        found = list(links.broken(Path("docs/a.md"), self.PAGE, pages.get))
        self.assertEqual(found, [(4, "#nowhere"), (5, "c.md"), (5, "b.md#none")])


if __name__ == "__main__":
    unittest.main()
