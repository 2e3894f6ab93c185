#include "strait/checkpoint/state_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "strait/base/errors.h"

namespace strait::checkpoint {
namespace {

constexpr std::array kDtypes = {Dtype::kByte,     Dtype::kInt32,   Dtype::kInt64,  Dtype::kFloat16,
                                Dtype::kBfloat16, Dtype::kFloat32, Dtype::kFloat64};

Dtype parse_dtype(const std::string& word) {
  std::vector<std::string> known;
  for (const Dtype dtype : kDtypes) {
    if (word == dtype_name(dtype)) return dtype;
    known.emplace_back(dtype_name(dtype));
  }
  throw UserError(
      fmt::format("unknown dtype \"{}\"; the nearest is {}", word, nearest_choice(word, known)));
}

Json runs_json(const ElementRuns& runs) {
  Json json = Json::array();
  for (const ElementRun& run : runs)
    json.push_back(Json(std::vector<int64_t>{run.begin, run.length, run.count, run.stride}));
  return json;
}

/// An entry of `runs`; what does not ascend inside of [0, end) is refused.
ElementRun parse_run(const Json& json, int64_t end) {
  const Json::Array& numbers = json.as_array();
  if (numbers.size() != 4)
    throw UserError(fmt::format("an entry of runs has {} numbers, not 4", numbers.size()));
  const ElementRun run{numbers[0].as_integer(), numbers[1].as_integer(), numbers[2].as_integer(),
                       numbers[3].as_integer()};
  int64_t last = 0;
  const bool ascends = run.begin >= 0 && run.length > 0 && run.count > 0 &&
                       (run.count == 1 || run.stride >= run.length) &&
                       !__builtin_mul_overflow(run.count - 1, run.stride, &last) &&
                       !__builtin_add_overflow(last, run.begin, &last) &&
                       !__builtin_add_overflow(last, run.length, &last) && last <= end;
  if (!ascends)
    throw UserError(
        fmt::format("runs of {} elements from {} on, {} times, {} apart, do not lie in "
                    "the {} elements of their shard",
                    run.length, run.begin, run.count, run.stride, end));
  return run;
}

}  // namespace

int64_t count_at(const Json& json, const char* key, int64_t least) {
  const int64_t value = json.at(key).as_integer();
  if (value < least) throw UserError(fmt::format("{} is {}, less than {}", key, value, least));
  return value;
}

std::string plain_name(const Json& json) {
  const std::string& name = json.as_string();
  if (name.empty() || name == "." || name == ".." ||
      name.find_first_of(std::string_view("/\0", 2)) != std::string::npos)
    throw UserError(
        fmt::format("\"{}\" is not the name of a file in the checkpoint's folder", name));
  return name;
}

ElementRuns runs_of(const StateRange& range) {
  if (!range.runs.empty()) return range.runs;
  ElementRuns runs;
  append(runs, {range.begin, range.end - range.begin, 1, 0});
  return runs;
}

StateRange with_runs(StateRange range, ElementRuns runs) {
  range.begin = range.end = 0;
  for (const ElementRun& run : runs) {
    range.begin = &run == &runs.front() ? run.begin : std::min(range.begin, run.begin);
    range.end = std::max(range.end, run.end());
  }
  if (runs.size() == 1 && runs.front().count == 1) runs.clear();
  range.runs = std::move(runs);
  return range;
}

std::string shard_tensor_name(const StateRange& range) {
  std::string name = range.unit.empty() ? range.state : range.unit + "/" + range.state;
  name += fmt::format("/{}-{}", range.begin, range.end);
  if (range.sender != kNoSender) name += fmt::format(";sender={}", range.sender);
  if (range.replica != 0) name += fmt::format(";replica={}", range.replica);
  return name;
}

/// What the first format has not stands only where it is used.
Json shard_json(const ShardRecord& shard) {
  const StateRange& range = shard.range;
  Json json = Json::object({{"file", shard.file},
                            {"unit", range.unit},
                            {"state", range.state},
                            {"begin", range.begin},
                            {"end", range.end},
                            {"dtype", dtype_name(range.dtype)}});
  if (!range.runs.empty()) json["runs"] = runs_json(range.runs);
  if (range.sender != kNoSender) json["sender"] = range.sender;
  if (range.replica != 0) json["replica"] = range.replica;
  return json;
}

ShardRecord parse_shard(const Json& json) {
  ShardRecord shard;
  StateRange& range = shard.range;
  shard.file = plain_name(json.at("file"));
  range.unit = json.at("unit").as_string();
  range.state = json.at("state").as_string();
  range.begin = count_at(json, "begin");
  range.end = count_at(json, "end", range.begin);
  range.dtype = parse_dtype(json.at("dtype").as_string());
  if (const Json* runs = json.find("runs"))
    for (const Json& run : runs->as_array()) range.runs.push_back(parse_run(run, range.end));
  if (json.find("sender") != nullptr) range.sender = count_at(json, "sender");
  if (json.find("replica") != nullptr) range.replica = count_at(json, "replica");
  return shard;
}

}  // namespace strait::checkpoint
