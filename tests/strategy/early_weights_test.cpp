// Gradients of weights where sequences are shared: what stands behind attention is made, and its
// values have ended, before the backward attends (docs/mesh.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "strait/config/parse.h"
#include "strait/draft/segment_ops.h"
#include "strait/strategy/compose/design.h"
#include "strait/verify/verify.h"

namespace strait::strategy {
namespace {

using program::Op;
using program::Program;
using Sets = std::vector<std::string>;

std::vector<Program> programs_of(int64_t ranks, Sets sets) {
  for (const char* set : {"model.preset=nano-char", "data.tokenizer=byte", "mesh.axes.sequence=2"})
    sets.emplace_back(set);
  return make_design(parse_run("", "run.toml", sets), ranks, 256, 4).steady();
}

bool attends_again(const Op& op) {
  return op.kernel == &draft::kAttendRoundInput || op.kernel == &draft::kAttendGroupInput ||
         op.kernel == &draft::head_kernel(HeadStep::kAttendInput) ||
         (op.kernel == &draft::kBackwardInput && draft::range_of(op).begin == 4 &&
          draft::range_of(op).end == 5);
}

/// Names of what is alive while a backward attends.
std::set<std::string> alive_in_attention(const Program& program) {
  std::set<std::pair<int, int64_t>> alive;
  std::set<std::string> names;
  program::for_each_instance(program, [&](const Op& op, const std::vector<int64_t>& loops) {
    for (const program::Operand& operand : op.writes) {
      const std::pair value{operand.array, program::evaluate(operand.index, loops)};
      if (op.kind == program::OpKind::kFree)
        alive.erase(value);
      else
        alive.insert(value);
    }
    if (!attends_again(op)) return;
    const program::Operand* saved = draft::find_operand({&op, 1}, draft::kSaved);
    for (const auto& [array, index] : alive) {
      const std::string& name = program.arrays[static_cast<size_t>(array)].name;
      const bool of_others = name == "up" && index != program::evaluate(saved->index, loops);
      if (!of_others) names.insert(name);
    }
  });
  return names;
}

/// "backward_weight 8..11" of the first transformer block, and "attention".
std::vector<std::string> backward_of_first_block(const Program& program) {
  std::vector<std::string> ops;
  program::for_each_instance(program, [&](const Op& op, const std::vector<int64_t>& loops) {
    const bool of_segments =
        op.kernel == &draft::kBackwardInput || op.kernel == &draft::kBackwardWeight;
    if (!of_segments && !attends_again(op)) return;
    if (program::evaluate(program::attribute<program::Index>(op, draft::kBlock), loops) != 1)
      return;
    const SegmentRange range = draft::range_of(op);
    const std::string text = attends_again(op) ? "attention"
                                               : std::string(program::op_name(op)) + " " +
                                                     std::to_string(range.begin) + ".." +
                                                     std::to_string(range.end);
    if (ops.empty() || ops.back() != text) ops.push_back(text);
  });
  return ops;
}

const char* const kBehindAttention[] = {
    "activated",  "down_sum_gradient", "up_gradient",         "up",
    "normed_mlp", "kept_attention",    "output_sum_gradient", "normed_mlp_gradient"};

TEST(EarlyWeights, ArePartsMadeAsSoonAsTheirProductsAreThere) {
  for (const char* engine : {"ring", "gathered", "heads"}) {
    std::vector<std::string> ops = backward_of_first_block(
        programs_of(2, {std::string("sequence.engine=") + engine, "train.global_batch_size=1",
                        "train.micro_batch_size=1"})
            .front());
    EXPECT_EQ(ops, (std::vector<std::string>{
                       "backward_input 10..15", "backward_weight 12..15", "backward_input 7..10",
                       "backward_weight 8..12", "backward_input 5..7", "backward_weight 5..8",
                       "attention", "backward_input 0..4", "backward_weight 0..5"}))
        << engine;
  }
}

TEST(EarlyWeights, WhatStandsBehindAttentionHasEndedWhereTheBackwardAttends) {
  const Sets output = {"kept_attention", "output_sum_gradient"};  // beside the next sum over x
  struct Example {
    int64_t ranks;
    Sets sets, later = {};
  };
  for (const auto& [ranks, sets, later] : std::vector<Example>{
           {2, {"sequence.engine=ring"}},
           {2, {"sequence.engine=gathered"}},
           {2, {"sequence.engine=heads"}},
           {2, {"sequence.engine=ring", "train.recompute=block"}},
           {2, {"sequence.engine=ring", "train.precision=bf16"}},
           {4, {"sequence.engine=ring", "mesh.axes.x=2"}, output},
           {4, {"sequence.engine=ring", "mesh.axes.x=2", "tensor.overlap=ors"}},
           {4, {"sequence.engine=ring", "mesh.axes.x=2", "tensor.sequence_parallel=true"}, output},
           {4, {"sequence.engine=ring", "mesh.axes.y=2"}},
           {4, {"sequence.engine=ring", "mesh.axes.stage=2"}}}) {
    SCOPED_TRACE(testing::PrintToString(sets));
    const std::vector<Program> programs = programs_of(ranks, sets);
    EXPECT_TRUE(program::verify(programs).empty());
    for (const Program& program : programs) {
      const std::set<std::string> alive = alive_in_attention(program);
      EXPECT_TRUE(alive.contains("s"));
      for (const char* name : kBehindAttention)
        EXPECT_EQ(alive.contains(name), std::ranges::count(later, name) > 0) << name;
    }
  }
}

/// Whatever weights read of gradients of norms has been summed by then.
TEST(EarlyWeights, StandBehindTheSumsOfWhatTheyRead) {
  for (const char* overlap : {"tensor.overlap=oar,ors,oag", "tensor.overlap=[]"}) {
    std::set<std::pair<int, int64_t>> used;
    const Program program = programs_of(4, {"sequence.engine=ring", "mesh.axes.x=2",
                                            "tensor.sequence_parallel=true", overlap})
                                .front();
    program::for_each_instance(program, [&](const Op& op, const std::vector<int64_t>& loops) {
      const auto value = [&](const program::Operand& operand) {
        return std::pair{operand.array, program::evaluate(operand.index, loops)};
      };
      for (const program::Operand& operand : op.reads)
        if (op.kernel == &draft::kBackwardWeight) used.insert(value(operand));
      for (const program::Operand& operand : op.writes)
        if (op.kind == program::OpKind::kFree) {
          used.erase(value(operand));
        } else if (op.kind == program::OpKind::kAllReduce) {
          EXPECT_FALSE(used.contains(value(operand))) << overlap;
        }
    });
  }
}

/// Weights that are visits of their own stay where the pipeline has them: behind its first stage.
TEST(EarlyWeights, LeaveASplitBackwardAlone) {
  const std::vector<Program> programs =
      programs_of(4, {"sequence.engine=ring", "mesh.axes.stage=2", "pipeline.order=zero-bubble-h1",
                      "train.global_batch_size=8", "train.micro_batch_size=2"});
  EXPECT_TRUE(program::verify(programs).empty());
  const std::set<std::string> alive = alive_in_attention(programs.back());
  EXPECT_TRUE(alive.contains("bundle") && alive.contains("deferred"));
}

}  // namespace
}  // namespace strait::strategy
