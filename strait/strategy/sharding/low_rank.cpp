#include "strait/strategy/sharding/low_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "strait/base/errors.h"
#include "strait/compression/low_rank.h"

namespace strait::strategy {
namespace {

int64_t parse_number(const std::string& text, size_t begin, size_t end) {
  int64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, number);
  if (error != std::errc() || stop != text.data() + end)
    throw InternalError("low rank: no number in " + text);
  return number;
}

/// Products with one side of the factors: two operations for each element of a matrix and column.
program::KernelCost product_cost(const program::Program& program, const program::Op& op,
                                 int64_t rank) {
  program::KernelCost cost;
  for (const LowRankRun& run : parse_low_rank(program::attribute<std::string>(op, kLowRankUnit)))
    cost.flops += 2.0 * static_cast<double>(run.elements * run.rank);
  const auto add = [&](const program::Operand& operand) {
    const program::ValueArray& array = program.arrays[static_cast<size_t>(operand.array)];
    const bool twice = program::reads_before(operand);
    cost.bytes += static_cast<double>((twice ? 2 : 1) * program::value_bytes(program, array, rank));
  };
  for (const program::Operand& operand : op.reads) add(operand);
  for (const program::Operand& operand : op.writes) add(operand);
  return cost;
}

using program::Count;
using program::kAdds;
using program::kReads;
using program::kUpdates;
using program::kWrites;

const std::vector<program::AttributeInfo>& attributes() {
  static const std::vector<program::AttributeInfo> all = {
      {"layers", program::AttributeType::kText}};
  return all;
}

}  // namespace

int64_t left_elements(const LowRankUnit& unit) {
  int64_t elements = 0;
  for (const LowRankRun& run : unit) elements += run.left_elements();
  return elements;
}

int64_t right_elements(const LowRankUnit& unit) {
  int64_t elements = 0;
  for (const LowRankRun& run : unit) elements += run.right_elements();
  return elements;
}

int64_t kept_elements(const LowRankUnit& unit) {
  int64_t elements = 0;
  for (const LowRankRun& run : unit) elements += run.kept_elements();
  return elements;
}

LowRankUnit low_rank_unit(const UnitShape& unit, const codec::Runs& runs, int64_t uniform) {
  LowRankUnit layers;
  int64_t first = 0;
  for (const codec::Run& run : runs.runs) {
    LowRankRun& layer = layers.emplace_back(LowRankRun{run.elements});
    if (codec::is_low_rank(run.codec)) {
      layer.rows = std::ranges::find(unit.parameters, first, &ParameterShape::offset)->dims[0];
      layer.rank = run.codec.rank;
      layer.most = uniform > 0
                       ? compression::ranks_like(layer.rows, layer.columns(), uniform).back()
                       : layer.rank;
    }
    first += run.elements;
  }
  return layers;
}

std::string print_low_rank(const LowRankUnit& unit) {
  std::string text;
  for (const LowRankRun& run : unit) {
    if (!text.empty()) text += '|';
    if (run.rank == 0) {
      text += std::to_string(run.elements);
      continue;
    }
    text += fmt::format("{}x{}/{}", run.rows, run.columns(), run.rank);
    if (run.most != run.rank) text += fmt::format(":{}", run.most);
  }
  return text;
}

LowRankUnit parse_low_rank(const std::string& text) {
  LowRankUnit unit;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('|', begin), text.size());
    const size_t times = text.find('x', begin), slash = text.find('/', begin);
    if (times < end && slash < end) {
      const size_t colon = std::min(text.find(':', slash), end);
      const int64_t rows = parse_number(text, begin, times),
                    rank = parse_number(text, slash + 1, colon);
      unit.push_back({rows * parse_number(text, times + 1, slash), rows, rank,
                      colon < end ? parse_number(text, colon + 1, end) : rank});
    } else {
      unit.push_back({parse_number(text, begin, end)});
    }
    begin = end + 1;
  }
  return unit;
}

const program::Kernel kProjectRight = {"project_right",
                                       program::Bound::kProducts,
                                       {{"gradient", kUpdates},
                                        {"residual", kReads, Count::kOptional},
                                        {"factors", kUpdates},
                                        {"left", kWrites},
                                        {"agreed", kAdds}},
                                       attributes(),
                                       product_cost};

const program::Kernel kProjectLeft = {
    "project_left",
    program::Bound::kProducts,
    {{"gradient", kReads}, {"left", kUpdates}, {"right", kWrites}},
    attributes(),
    product_cost};

const program::Kernel kExpandFactors = {"expand_factors",
                                        program::Bound::kProducts,
                                        {{"left", kReads},
                                         {"right", kReads},
                                         {"gradient", kUpdates},
                                         {"residual", kUpdates, Count::kOptional},
                                         {"factors", kWrites}},
                                        attributes(),
                                        product_cost};

}  // namespace strait::strategy
