#include "strait/checkpoint/manifest.h"

#include <gmock/gmock.h>

#include <limits>

#include "strait/base/errors.h"
#include "strait/checkpoint/files/hash.h"
#include "tests/checkpoint/example_run.h"

namespace strait::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Manifest full_manifest() {
  Manifest manifest = example_manifest(100, 2, 7);
  manifest.parameter_hash = std::string(32, 'a');
  for (int64_t rank = 0; rank < 2; ++rank) {
    RankRecord record;
    record.file = {"rank-" + std::to_string(rank), 123 + rank, std::string(32, '0')};
    for (const StateRange& range : example_ranges(rank, 2))
      record.shards.push_back({range, record.file.name});
    manifest.add(record);
  }
  return manifest;
}

TEST(Manifest, RoundTrip) {
  const Manifest manifest = full_manifest();
  const std::string text = manifest_text(manifest);
  const Manifest parsed = parse_manifest(text, "m");
  EXPECT_EQ(manifest_text(parsed), text);
  EXPECT_EQ(parsed.step, 100);
  EXPECT_EQ(parsed.tokens, 102400);
  EXPECT_EQ(parsed.ranks, 2);
  EXPECT_EQ(parsed.placement.as_string(), "zero3");
  EXPECT_EQ(parsed.seed, 1337);
  EXPECT_EQ(parsed.precision, "fp32");
  EXPECT_EQ(parsed.sequences_consumed, 1600);
  EXPECT_EQ(parsed.parameters, 161);
  EXPECT_EQ(parsed.parameter_hash, std::string(32, 'a'));
  ASSERT_EQ(parsed.units.size(), 3u);
  EXPECT_EQ(parsed.units[0].parameters[0].dims, (std::vector<int64_t>{10, 10}));
  EXPECT_EQ(parsed.units[0].parameters[1].offset, 100);
  EXPECT_EQ(parsed.units[1].parameters[1].elements(), 1);
  EXPECT_EQ(parsed.shards.size(), 18u);
  EXPECT_EQ(parsed.shards[2].range.dtype, Dtype::kFloat64);
  EXPECT_EQ(parsed.files[1].bytes, 124);
  EXPECT_EQ(parsed.extra.at("generation").as_integer(), 7);
  EXPECT_NO_THROW(require_full_coverage(parsed, "m"));
}

TEST(Manifest, NumbersOfTheCallerSurvive) {
  Manifest manifest = full_manifest();
  manifest.parameter_hash.reset();
  manifest.extra = Json::object({{"a", 1e300},
                                 {"b", 0.1},
                                 {"c", 3.0},
                                 {"d", std::numeric_limits<double>::infinity()},
                                 {"e", INT64_MIN},
                                 {"f", "line\nbreak \"é\""}});
  const Manifest parsed = parse_manifest(manifest_text(manifest), "m");
  EXPECT_FALSE(parsed.parameter_hash.has_value());
  EXPECT_EQ(parsed.extra.at("a").as_number(), 1e300);
  EXPECT_EQ(parsed.extra.at("b").as_number(), 0.1);
  EXPECT_EQ(parsed.extra.at("c").as_number(), 3.0);
  EXPECT_TRUE(parsed.extra.at("d").is_null());
  EXPECT_EQ(parsed.extra.at("e").as_integer(), INT64_MIN);
  EXPECT_EQ(parsed.extra.at("f").as_string(), "line\nbreak \"é\"");
}

TEST(Manifest, EveryFlippedBitAndEveryCutIsFound) {
  // One of everything: the cost is quadratic in the text.
  Manifest manifest = full_manifest();
  manifest.units.resize(1);
  manifest.shards.resize(1);
  manifest.files.resize(1);
  const std::string text = manifest_text(manifest);
  EXPECT_NO_THROW(parse_manifest(text, "m"));
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
    EXPECT_THROW(parse_manifest(changed, "m"), UserError) << i;
    EXPECT_THROW(parse_manifest(text.substr(0, i), "m"), UserError) << i;
  }
  EXPECT_THROW(parse_manifest(text + " ", "m"), UserError);
}

/// The text with one piece exchanged, and the hash made right again.
std::string with(const std::string& from, const std::string& to) {
  std::string text = manifest_text(full_manifest());
  text.erase(text.rfind(",\n  \"hash\""));
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  return text + ",\n  \"hash\": \"" + hash_hex(text) + "\"\n}\n";
}

TEST(Manifest, WrongFieldsAreNamed) {
  const std::vector<std::array<std::string, 3>> cases = {
      {"strait.checkpoint/1", "strait.checkpoint/3", "another version"},
      {"strait.checkpoint/1", "something/1", "no checkpoint's"},
      {"\"step\": 100", "\"step\": -1", "step is -1"},
      {"\"step\": 100", "\"step\": \"100\"", "expected an integer"},
      {"\"step\"", "\"stop\"", "\"step\" is missing"},
      {"\"ranks\": 2", "\"ranks\": 0", "ranks is 0"},
      {"\"tokens\": 102400", "\"tokens\": 1.5", "expected an integer"},
      {"\"name\": \"rank-0\"", "\"name\": \"../rank-0\"", "../rank-0"},
      {"\"name\": \"rank-0\"", "\"name\": \"\"", "not the name of a file"},
      {"\"name\": \"rank-0\"", "\"name\": \"rank-1\"", "stands twice"},
      {"\"file\": \"rank-0\"", "\"file\": \"rank-7\"", "rank-7, which is not listed"},
      {"\"unit\": \"blocks.0\"", "\"unit\": \"blocks.9\"", "no listed unit"},
      {"\"dtype\": \"fp32\"", "\"dtype\": \"fp31\"", "the nearest is fp32"},
      {"\"end\": 51", "\"end\": 999", "beyond the 103 elements"},
      {"\"end\": 51", "\"end\": 52", "overlap"},
      {"\"begin\": 51", "\"begin\": 104", "end is 103, less than 104"},
      {"\"elements\": 57", "\"elements\": 56", "does not lie inside unit blocks.0"},
      {"\"offset\": 100", "\"offset\": 9223372036854775807", "does not lie inside"},
      {"\"files\"", "\"fires\"", "\"files\" is missing"}};
  for (const auto& [from, to, says] : cases)
    EXPECT_THAT(message_of<UserError>([&] { parse_manifest(with(from, to), "run/m.json"); }),
                AllOf(HasSubstr("run/m.json"), HasSubstr(says)))
        << from << " -> " << to;
  EXPECT_THAT(message_of<UserError>([] { parse_manifest("{}", "m"); }),
              HasSubstr("\"format\" is missing"));
  EXPECT_THAT(message_of<UserError>([] { parse_manifest("", "m"); }), HasSubstr("not valid JSON"));
  EXPECT_THAT(message_of<UserError>([] { parse_manifest("[]", "m"); }),
              HasSubstr("\"format\" is missing"));
}

/// Two ranks hold the columns of a matrix, each 4 of 8; a residual of sender 3; a value of the run.
Manifest split_manifest() {
  Manifest manifest = example_manifest(100, 2, 7);
  for (int64_t rank = 0; rank < 2; ++rank) {
    RankRecord record;
    record.file = {"rank-" + std::to_string(rank), 123, std::string(32, '0')};
    record.shards.push_back(
        {with_runs({"blocks.0", kMaster}, {{4 * rank, 4, 7, 8}}), record.file.name});
    manifest.add(record);
  }
  manifest.shards.push_back({{"blocks.0", kMaster, 56, 57}, "rank-0"});
  StateRange residual{"blocks.0", "residual/1", 0, 10};
  residual.sender = 3;
  manifest.shards.push_back({residual, "rank-0"});
  manifest.values.push_back({"counters", 4});
  manifest.shards.push_back({{"", "counters", 0, 4, Dtype::kFloat64}, "rank-1"});
  return manifest;
}

TEST(Manifest, RunsSendersAndValuesSurvive) {
  const Manifest manifest = split_manifest();
  const std::string text = manifest_text(manifest);
  EXPECT_NE(text.find("strait.checkpoint/2"), std::string::npos);
  const Manifest parsed = parse_manifest(text, "m");
  EXPECT_EQ(manifest_text(parsed), text);
  EXPECT_NO_THROW(require_full_coverage(parsed, "m"));
  EXPECT_EQ(parsed.shards[1].range.runs, (ElementRuns{{4, 4, 7, 8}}));
  EXPECT_EQ(parsed.shards[1].range.begin, 4);
  EXPECT_EQ(parsed.shards[1].range.end, 56);
  EXPECT_EQ(parsed.shards[1].range.elements(), 28);
  EXPECT_EQ(parsed.shards[3].range.sender, 3);
  EXPECT_EQ(shard_tensor_name(parsed.shards[3].range), "blocks.0/residual/1/0-10;sender=3");
  EXPECT_EQ(shard_tensor_name(parsed.shards[4].range), "counters/0-4");
  EXPECT_EQ(parsed.elements_of(parsed.shards[4].range), 4);
  EXPECT_EQ(manifest_text(full_manifest()).find("checkpoint/2"), std::string::npos);
}

TEST(Manifest, WrongRunsAreNamed) {
  const auto refused = [](const std::function<void(Manifest&)>& change, const char* says) {
    Manifest manifest = split_manifest();
    change(manifest);
    EXPECT_THAT(message_of<UserError>([&] { parse_manifest(manifest_text(manifest), "m"); }),
                HasSubstr(says));
  };
  const auto run_of = [](Manifest& manifest) -> ElementRun& {
    return manifest.shards[1].range.runs[0];
  };
  refused([&](Manifest& m) { run_of(m).begin = 3; }, "has runs from 3 to 55");
  refused([&](Manifest& m) { run_of(m).length = 5; }, "do not lie in the 56 elements");
  refused([&](Manifest& m) { run_of(m).length = 0; }, "do not lie in");
  refused([&](Manifest& m) { run_of(m).stride = 3; }, "do not lie in");
  refused([&](Manifest& m) { run_of(m).count = INT64_MAX; }, "do not lie in");
  refused(
      [&](Manifest& m) {
        m.shards[1].range = with_runs(m.shards[1].range, {{2, 4, 7, 8}});
      },
      "overlap");
  refused([&](Manifest& m) { m.shards[3].range.sender = -2; }, "sender is -2");
  refused([&](Manifest& m) { m.values[0].name = "counts"; }, "of no listed unit");
  refused([&](Manifest& m) { m.values.push_back(m.values[0]); }, "value counters stands twice");
  Manifest gap = split_manifest();
  gap.shards.erase(gap.shards.begin() + 1);
  EXPECT_THAT(message_of<UserError>([&] { require_full_coverage(gap, "m"); }),
              HasSubstr("elements [4, 8) of master of unit blocks.0"));
}

TEST(Manifest, GapsAreNamed) {
  for (size_t missing = 0; missing < full_manifest().shards.size(); ++missing) {
    Manifest manifest = full_manifest();
    const StateRange gone = manifest.shards[missing].range;
    manifest.shards.erase(manifest.shards.begin() + static_cast<std::ptrdiff_t>(missing));
    if (gone.begin == gone.end || gone.unit == "head")
      continue;  // empty, or the state is absent as a whole
    EXPECT_THAT(message_of<UserError>([&] { require_full_coverage(manifest, "m"); }),
                AllOf(HasSubstr(std::to_string(gone.begin) + ", " + std::to_string(gone.end) + ")"),
                      HasSubstr(gone.state), HasSubstr(gone.unit)));
  }
}

TEST(Manifest, AnotherModelIsNamed) {
  const Manifest manifest = full_manifest();
  EXPECT_NO_THROW(require_same_units(manifest, example_units(), "m"));
  const auto refused = [&](const std::function<void(std::vector<UnitRecord>&)>& change,
                           const char* says) {
    std::vector<UnitRecord> units = example_units();
    change(units);
    EXPECT_THAT(message_of<UserError>([&] { require_same_units(manifest, units, "run/x"); }),
                AllOf(HasSubstr("run/x"), HasSubstr("another model"), HasSubstr(says),
                      HasSubstr("161 elements")));
  };
  refused([](auto& units) { units[1].elements = 58; }, "57 elements in the checkpoint, 58 in");
  refused([](auto& units) { units[1].name = "blocks.1"; }, "the checkpoint has no unit blocks.1");
  refused([](auto& units) { units.pop_back(); }, "the model of the run has no unit head");
  refused([](auto& units) { units[0].parameters[0].dims = {5, 20}; }, "tokens.weight (10x10)");
  refused([](auto& units) { units[0].parameters[0].name = "t"; }, "t (10x10)");
  refused([](auto& units) { units[0].parameters[1].offset = 99; }, "at element 99");
  refused([](auto& units) { units[0].parameters.pop_back(); }, "2 parameters in the checkpoint, 1");
}

TEST(Manifest, UnitsOfAModel) {
  ModelShape model;
  UnitShape unit;
  unit.name = "blocks.0";
  unit.elements = 10;
  ParameterShape parameter;
  parameter.name = "w";
  parameter.dims = {2, 5};
  unit.parameters.push_back(parameter);
  model.units.push_back(unit);
  const std::vector<UnitRecord> units = unit_records(model);
  ASSERT_EQ(units.size(), 1u);
  EXPECT_EQ(units[0].elements, 10);
  EXPECT_EQ(units[0].parameters[0].dims, (std::vector<int64_t>{2, 5}));
}

TEST(RankRecord, TravelsAsJson) {
  RankRecord record;
  record.file = {"rank-00003.safetensors", 5000, "00ff"};
  record.shards.push_back({{"blocks.0", "momentum", 3, 9, Dtype::kBfloat16}, record.file.name});
  const RankRecord parsed =
      parse_rank_record(Json::parse(rank_record_json(record).dump(), "rank 3"));
  EXPECT_EQ(parsed.file.name, record.file.name);
  EXPECT_EQ(parsed.file.bytes, 5000);
  EXPECT_EQ(parsed.file.hash, "00ff");
  ASSERT_EQ(parsed.shards.size(), 1u);
  EXPECT_EQ(shard_tensor_name(parsed.shards[0].range), "blocks.0/momentum/3-9");
  EXPECT_EQ(parsed.shards[0].range.dtype, Dtype::kBfloat16);
}

}  // namespace
}  // namespace strait::checkpoint
