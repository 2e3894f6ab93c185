// Every key is read, printed and read again; every kind of bad input names file, line, key and the
// nearest.
#include "strait/config/parse.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>

#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/config/keys.h"
#include "strait/config/print.h"

namespace strait {
namespace {

using testing::HasSubstr;
using RunFile = Run;  // inside a test the plain name is GoogleTest's

Error error_of(const std::string& text, const std::vector<std::string>& sets = {}) {
  try {
    parse_run(text, "run.toml", sets);
  } catch (const UserError& error) {
    return error;
  }
  ADD_FAILURE() << "accepted: " << text;
  return InternalError("accepted");
}

/// A literal of the key's type that differs from its default.
std::string other_literal(const Key& key) {
  if (key.name == "model.preset") return "\"gpt2-350m\"";
  static const char* kLiterals[] = {
      "true",
      "7",
      "7",
      "0.375",
      "\"other\"",
      "[\"a\", \"b\"]",
      "[1.5, 2.0]",
      "[6, 8]",
      "[0.5, 0.25]",
      "[{ name = \"pair\", size = 2, gb_per_second = 200.0, latency_microseconds = 2.0 }]"};
  const RunFile defaults;
  if (key.field.index() == 0 && value_text(key, defaults) == "true") return "false";
  return kLiterals[key.field.index()];
}

std::string in_section(const Key& key, const std::string& literal) {
  const size_t dot = key.name.rfind('.');
  if (dot == std::string::npos) return key.name + " = " + literal + "\n";
  return "[" + key.name.substr(0, dot) + "]\n" + key.name.substr(dot + 1) + " = " + literal + "\n";
}

TEST(Parse, EveryKeyIsRead) {
  const RunFile defaults;
  for (const Key& key : run_keys()) {
    const RunFile run = parse_run(in_section(key, other_literal(key)), "run.toml");
    EXPECT_FALSE(same_value(key, run, defaults)) << key.name;
    ASSERT_TRUE(run.is_set(key.name)) << key.name;
    EXPECT_EQ(run.written.size(), 1u);
    EXPECT_EQ(run.written.at(key.name).file, "run.toml");
    EXPECT_EQ(run.written.at(key.name).line, key.name.find('.') == std::string::npos ? 1 : 2)
        << key.name;
    for (const Key& other : run_keys())  // no other field moved, but those that a preset fills
      if (other.name != key.name && !other.name.starts_with("model.") &&
          other.filled_by != key.name) {
        EXPECT_TRUE(same_value(other, run, defaults)) << key.name << " moved " << other.name;
      }
  }
}

TEST(Parse, NamesAreUniqueAndAsManyAsTheInterfaceHas) {
  std::set<std::string> names;
  for (const Key& key : run_keys()) EXPECT_TRUE(names.insert(key.name).second) << key.name;
  // Counted by hand in the interface: 3 top level, 7 runtime, 4 tensor, 5 pipeline, 4 compression,
  // 3 lgreco, 4 simulate, 4 plan, 3 tune, 32 model, 5 data, 8 train, 10 optimizer, 2 evaluation, 5
  // checkpoint, 4 output, 3 cluster and its compute_share, 7 mesh, 11 placement, 7 sequence, 15
  // sync; of systems to come 2 data, 1 train, 7 residence, 8 tiers, 6 zeroth_order, 8 projection, 3
  // adapter.
  EXPECT_EQ(names.size(), 3u + 7 + 4 + 5 + 4 + 3 + 4 + 4 + 3 + 32 + 6 + 8 + 10 + 2 + 5 + 4 + 4 + 7 +
                              11 + 7 + 15 + 2 + 1 + 7 + 8 + 6 + 8 + 3);
}

TEST(Parse, InlineTablesDottedKeysAndSectionsAreTheSame) {
  for (const char* text :
       {"[model]\nshape = { layers = 2, width = 24 }\n", "[model.shape]\nlayers = 2\nwidth = 24\n",
        "model.shape.layers = 2\nmodel.shape.width = 24\n",
        "model = { shape = { layers = 2, width = 24 } }"}) {
    const RunFile run = parse_run(text, "run.toml");
    EXPECT_EQ(run.model.shape.layers, 2) << text;
    EXPECT_EQ(run.model.shape.width, 24) << text;
    EXPECT_EQ(run.written.size(), 2u);
  }
}

TEST(Parse, LinesOfKeysInsideInlineTablesAreKnown) {
  EXPECT_EQ(error_of("\n\n[model]\nshape = { layers = 2, widht = 24 }\n").place().line, 4);
}

TEST(Parse, ThePresetFillsWhatIsNotWritten) {
  const RunFile run = parse_run("[model]\npreset = \"nano-char\"\nshape.layers = 3\n", "run.toml");
  EXPECT_EQ(run.model.shape.layers, 3);
  EXPECT_EQ(run.model.shape.width, 128);
  EXPECT_EQ(run.model.shape.context, 64);
  EXPECT_FALSE(run.model.shape.bias);
  const RunFile empty = parse_run("", "run.toml");
  const RunFile defaults;
  for (const Key& key : run_keys()) EXPECT_TRUE(same_value(key, empty, defaults)) << key.name;
  const Error error = error_of("[model]\npreset = \"nano-cahr\"\n");
  EXPECT_THAT(error.what(), HasSubstr("nano-char"));
  EXPECT_EQ(error.place().line, 2);
  EXPECT_EQ(error.place().key, "model.preset");
}

TEST(Parse, KeyValueHeadsFollowHeads) {
  EXPECT_EQ(parse_run("model.shape.heads = 4", "run.toml").model.shape.kv_heads, 4);
  EXPECT_EQ(parse_run("model.shape = { heads = 4, kv_heads = 2 }", "run.toml").model.shape.kv_heads,
            2);
}

TEST(Parse, TheMinimumLearningRateFollowsALowerPeak) {
  EXPECT_EQ(parse_run("optimizer.learning_rate = 5e-5", "").optimizer.minimum_learning_rate, 5e-5);
  EXPECT_EQ(parse_run("optimizer.learning_rate = 1e-2", "").optimizer.minimum_learning_rate, 1e-4);
}

struct BadFile {
  const char* text;
  int64_t line;  // 0 = none
  const char* key;
  const char* message;
};

TEST(Parse, BadFilesNameFileLineKeyAndNearest) {
  const BadFile cases[] = {
      {"[train]\nstepz = 3\n", 2, "train.stepz",
       "unknown key \"train.stepz\"; the nearest is \"train.steps\""},
      {"\n[trian]\nsteps = 3\n", 2, "trian", "unknown section \"trian\"; the nearest is \"train\""},
      {"sed = 3", 1, "sed", "nearest is \"seed\""},
      {"[train]\nlearning_rate = 1e-3\n", 2, "train.learning_rate",
       "nearest is \"optimizer.learning_rate\""},
      {"[placement.span]\nweights = \"none\"\n", 1, "placement.span",
       "nearest is \"placement.spans\""},
      {"[train]\nsteps = \"many\"\n", 2, "train.steps",
       "wants an integer, found a string (\"many\")"},
      {"[train]\nsteps = 3.5\n", 2, "train.steps", "wants an integer, found a number (3.5)"},
      {"[train]\nclip_norm = true\n", 2, "train.clip_norm",
       "wants a number, found a boolean (true)"},
      {"[train]\nclip_norm = nan\n", 2, "train.clip_norm", "wants a finite number"},
      {"[train]\nclip_norm = inf\n", 2, "train.clip_norm", "wants a finite number"},
      {"[data]\npath = 3\n", 2, "data.path", "wants a string, found an integer (3)"},
      {"[checkpoint]\nasynchronous = 1\n", 2, "checkpoint.asynchronous", "wants a boolean"},
      {"seed = -1\n", 1, "seed", "wants an integer >= 0, found an integer (-1)"},
      {"seed = 1979-05-27\n", 1, "seed", "found a date or time"},
      {"train = 3\n", 1, "train", "train is a section"},
      {"[[train]]\nsteps = 3\n", 1, "train", "found a list"},
      {"[train.steps]\nx = 3\n", 1, "train.steps", "wants an integer, found a table"},
      {"[optimizer]\nbetas = [0.9]\n", 2, "optimizer.betas", "wants a list of two numbers"},
      {"[optimizer]\nbetas = [0.9, \"x\"]\n", 2, "optimizer.betas",
       "wants a number, found a string"},
      {"[plan]\nsearch = \"mesh\"\n", 2, "plan.search", "wants a list of strings, found a string"},
      {"[cluster]\nlevels = [{ name = \"a\", sise = 2 }]\n", 2, "cluster.levels.sise",
       "nearest key is \"cluster.levels.size\""},
      {"[cluster]\nlevels = [3]\n", 2, "cluster.levels", "wants a table"},
      {"[cluster]\nlevels = [{ size = 2.5 }]\n", 2, "cluster.levels.size", "wants an integer"},
      {"[train]\nsteps = \n", 2, nullptr, "not valid TOML"},
      {"[train\nsteps = 3\n", 1, nullptr, "not valid TOML"},
      {"name = \"é\" # é\n\n\xef\xb4\xbfseed = 1\n", 3, nullptr, "not valid TOML"},
      {"name = \"\"\"é\né\"\"\"\"\"\nseed = 1\né", 4, nullptr, "not valid TOML"},
      {"name = 'é\\'\né = 1", 2, nullptr, "not valid TOML"},
      {"seed = 1\n[/rain]\n", 2, nullptr, "not valid TOML"},
      {"[train]\nsteps = 3\nsteps = 4\n", 3, nullptr, "not valid TOML"},
      {"name = \"\xff\"\n", 1, nullptr, "not valid TOML"},
      {"seed = 99999999999999999999\n", 1, nullptr, "not valid TOML"},
  };
  for (const BadFile& bad : cases) {
    const Error error = error_of(bad.text);
    EXPECT_EQ(error.code(), ExitCode::kUser) << bad.text;
    EXPECT_EQ(error.place().file, "run.toml") << bad.text;
    EXPECT_EQ(error.place().line.value_or(0), bad.line) << bad.text << error.what();
    EXPECT_EQ(error.place().key, bad.key ? std::optional<std::string>(bad.key) : std::nullopt)
        << bad.text;
    EXPECT_THAT(error.what(), HasSubstr(bad.message));
  }
}

TEST(Parse, DeepAndLargeFilesAreRefusedNotCrashed) {
  std::string dots = "a";
  for (int i = 0; i < 200'000; ++i) dots += ".a";
  EXPECT_THAT(error_of(dots + " = 1").what(), HasSubstr("dots"));
  EXPECT_THAT(error_of("[" + dots + "]").what(), HasSubstr("dots"));
  EXPECT_THAT(error_of("x = { " + dots + " = 1 }").what(), HasSubstr("dots"));
  EXPECT_THAT(error_of("x = " + std::string(100'000, '[')).what(), HasSubstr("not valid TOML"));
  std::string tables;
  for (int i = 0; i < 100'000; ++i) tables += "{a=";
  EXPECT_THAT(error_of("x = " + tables).what(), HasSubstr("not valid TOML"));
  EXPECT_THAT(error_of(std::string((1 << 20) + 1, '#')).what(), HasSubstr("bytes are too many"));
  EXPECT_THAT(error_of(std::string(500'000, 'a') + " = 1").what(), HasSubstr("unknown key"));
  // Dots inside quotes are no depth.
  EXPECT_EQ(parse_run("name = \"" + std::string(500, '.') + "\"", "x").name.size(), 500u);
}

TEST(Set, IsTypedByTheKey) {
  const RunFile run = parse_run(
      "[train]\nsteps = 5\n", "run.toml",
      {"train.steps=1_000", "optimizer.learning_rate=1e-2", "train.clip_norm=0", "name=007",
       "data.path=/a b/c=d.txt", "data.document_separator=\"\\n\\n\"", "runtime.deterministic=true",
       "optimizer.betas=[0.8, 0.5]", "plan.search=mesh,recompute", "placement.spans.weights=2",
       "mesh.axes={ data = 4 }", "data.tokenizer="});
  EXPECT_EQ(run.train.steps, 1000);
  EXPECT_EQ(run.optimizer.learning_rate, 1e-2);
  EXPECT_EQ(run.train.clip_norm, 0.0);
  EXPECT_EQ(run.name, "007");
  EXPECT_EQ(run.data.path, "/a b/c=d.txt");
  EXPECT_EQ(run.data.document_separator, "\n\n");
  EXPECT_TRUE(run.runtime.deterministic);
  EXPECT_EQ(run.optimizer.betas[0], 0.8);
  EXPECT_EQ(run.optimizer.betas[1], 0.5);
  EXPECT_EQ(run.plan.search, (std::vector<std::string>{"mesh", "recompute"}));
  EXPECT_EQ(run.placement.spans.weights, "2");
  EXPECT_EQ(run.mesh.axes.data, 4);
  EXPECT_EQ(run.data.tokenizer, "");
  EXPECT_EQ(run.written.at("train.steps").file, "--set");
  EXPECT_EQ(run.written.at("train.steps").line, 0);
  EXPECT_EQ(parse_run("", "", {"optimizer.betas=0.8,0.5"}).optimizer.betas[1], 0.5);
}

TEST(Set, BadSettingsNameTheKeyAndNoLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"train.steps=abc", "wants an integer, found a string (\"abc\")"},
      {"train.steps=1\ntrain.seed=2", "wants an integer, found a string"},
      {"train.steps=1e3", "wants an integer, found a number"},
      {"train.stepz=3", "nearest is \"train.steps\""},
      {"trian.steps=3", "nearest is \"train.steps\""},
      {"train=3", "nearest is \"train.KEY\""},
      {"steps", "wants KEY=VALUE"},
      {"=3", "wants KEY=VALUE"},
      {"name=\xff\xfe", "not valid UTF-8"},
      {"optimizer.betas=0.8", "list of two numbers"},
      {"mesh.axes={ dat = 4 }", "nearest is \"mesh.axes.data\""},
  };
  for (const auto& [setting, message] : cases) {
    const Error error = error_of("", {setting});
    EXPECT_EQ(error.place().file, "--set") << setting;
    EXPECT_FALSE(error.place().line) << setting;
    EXPECT_TRUE(error.place().key) << setting;
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
}

TEST(Set, AClusterChoiceReplacesTheFiles) {
  const std::string text = "[cluster]\nlevels = [{ name = \"a\", gb_per_second = 1.0 }]\n";
  const RunFile run = parse_run(text, "run.toml", {cluster_setting("frontier")});
  EXPECT_TRUE(run.cluster.levels.empty());
  EXPECT_FALSE(run.is_set("cluster.levels"));
  EXPECT_EQ(run.cluster.preset, "frontier");
  EXPECT_EQ(cluster_setting("./c.toml"), "cluster.file=./c.toml");
  EXPECT_THROW(cluster_setting("fronteer"), UserError);
}

/// A random value of the key's type, of any finite size; the file need not make sense to be read
/// back.
std::string random_literal(const Key& key, const RandomStream& random, uint64_t& counter) {
  const auto number = [&] {
    double value = std::bit_cast<double>(random.bits(counter++));
    while (!std::isfinite(value)) value = std::bit_cast<double>(random.bits(counter++));
    return toml_number(value);
  };
  const auto text = [&] {
    static const char* kPieces[] = {"a", "\\", "\"", "\n", "\t", "\x01", "\x7f", "é",
                                    "€", "😀",  " ",  "=",  "#",  "'",    "."};
    std::string result;
    for (uint64_t n = random.below(counter++, 6); n > 0; --n)
      result += kPieces[random.below(counter++, std::size(kPieces))];
    return toml_string(result);
  };
  switch (key.field.index()) {
    case 0:
      return random.below(counter++, 2) ? "true" : "false";
    case 1:
      return std::to_string(static_cast<int64_t>(random.bits(counter++)));
    case 2:
      return std::to_string(random.bits(counter++) >> 1);
    case 3:
      return number();
    case 4:
      return key.name == "model.preset" ? "\"gpt2-124m\"" : text();
    case 5:
      return "[" + text() + ", " + text() + "]";
    case 6:
      return "[" + number() + "]";
    case 7:
      return fmt::format("[{}, {}]", static_cast<int64_t>(random.bits(counter++)), 3);
    case 8:
      return "[" + number() + ", " + number() + "]";
    default:
      return "[{ name = " + text() + ", size = 3, gb_per_second = " + number() +
             ", latency_microseconds = " + number() + ", links = 2 }]";
  }
}

/// What cannot take effect is not printed as if somebody had written it.
TEST(Print, OfOverlapsWithoutGathersNoneIsAhead) {
  const RunFile run = parse_run("tensor.overlap = [\"oar\", \"ors\"]", "run.toml");
  EXPECT_EQ(run.placement.prefetch_units, 0);
  EXPECT_EQ(parse_run("", "run.toml").placement.prefetch_units, 1);
  EXPECT_THAT(print_run(run), HasSubstr("prefetch_units = 0"));
  const RunFile asked =
      parse_run("placement.prefetch_units = 2\ntensor.overlap = [\"oar\"]", "run.toml");
  EXPECT_EQ(asked.placement.prefetch_units, 2);  // refused where it is resolved
}

TEST(Print, RoundTripsBitForBit) {
  uint64_t counter = 0;
  const RandomStream random(1, "round trip");
  for (int trial = 0; trial < 100; ++trial) {
    std::string text;
    if (trial > 0)
      for (const Key& key : run_keys()) {
        const bool other_cluster = key.name == "cluster.preset" || key.name == "cluster.file";
        if (!other_cluster && random.below(counter++, 3) > 0)
          text += key.name + " = " + random_literal(key, random, counter) + "\n";
      }
    const RunFile run = parse_run(text, "run.toml");
    const std::string printed = print_run(run);
    const RunFile again = parse_run(printed, "printed");
    for (const Key& key : run_keys())
      ASSERT_TRUE(same_value(key, run, again))
          << key.name << ": " << value_text(key, run) << " became " << value_text(key, again);
    EXPECT_EQ(print_run(again), printed);
    for (const Key& key : run_keys())  // what a preset fills must stay for the preset to fill
      if (std::string_view(key.filled_by) == "placement.preset") {
        EXPECT_EQ(run.is_set(key.name), again.is_set(key.name)) << key.name;
      }
  }
}

TEST(Print, DoublesAreShortestAndExact) {
  EXPECT_EQ(toml_number(0.1), "0.1");
  EXPECT_EQ(toml_number(120), "120.0");
  EXPECT_EQ(toml_number(1e-8), "1e-08");
  EXPECT_EQ(toml_number(1e300), "1e+300");
  EXPECT_EQ(toml_string("a\"\\\n\x01"), "\"a\\\"\\\\\\n\\u0001\"");
}

}  // namespace
}  // namespace strait
