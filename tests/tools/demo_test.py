"""The parts of `make demo` that need no network: the dictionary filter and the script's refusals."""
import gzip
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SOURCE = """
00-database-info
   This file was converted from the original database.

 Begin file 1 of 26:  Letter A

Zythum \\Zy"thum\\ (z[i^]"th[u^]m), n. [L., fr. Gr. zy^qos a kind
   of beer.]
   A kind of {ancient} malt beverage, a fa\u00e7ade; it haven\u2019t been
   listed. [Written also {zythem}.]
   [1913 Webster]

   2. F. h['e]r['e]ditaire, [ae]ther. [Obs.]
      [WordNet 1.5 +PJC]

Zzz \\Zzz\\ adj.
   1. asleep.
"""
EXPECTED = """\
Zythum, n. [L., fr. Gr. zy^qos a kind of beer.] A kind of ancient malt beverage, a fa\u00e7ade; it haven\u2019t \
been listed. [Written also zythem.]
2. F. hereditaire, aether. [Obs.]

Zzz adj. 1. asleep.
"""


class Dictionary(unittest.TestCase):
    def strip(self, text):
        with tempfile.TemporaryDirectory() as folder:
            source, target = pathlib.Path(folder, "in.dict.dz"), pathlib.Path(folder, "out.txt")
            source.write_bytes(gzip.compress(text.encode("windows-1252")))
            result = subprocess.run([sys.executable, ROOT / "tools/strip_dictionary", source, target],
                                    capture_output=True, text=True, check=False)
            return result, target.read_bytes() if target.exists() else None

    def test_markup_is_gone_and_bytes_stay(self):
        result, output = self.strip(SOURCE)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(output.decode("windows-1252"), EXPECTED)

    def test_no_dictionary(self):
        result, output = self.strip("just a text\n")
        self.assertEqual(result.returncode, 1)
        self.assertIn("no entry of a dictionary found", result.stderr)
        self.assertIsNone(output)


class Script(unittest.TestCase):
    def test_missing_text(self):
        result = subprocess.run([ROOT / "tools/demo", "no/such/text"], capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertIn("no/such/text does not exist", result.stderr)

    def test_setup_refuses_unknown_argument(self):
        result = subprocess.run([ROOT / "tools/setup", "--everything"], capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--peers", result.stderr)


if __name__ == "__main__":
    unittest.main()
