// Steps that the next one validates: where their operations stand, and what the other steps of the
// run are without them.
#include "strait/strategy/finish/postpone.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "strait/config/parse.h"
#include "strait/program/memory.h"
#include "strait/strategy/compose/design.h"
#include "strait/strategy/finish/postponed_kernels.h"

namespace strait::strategy {
namespace {

using program::Op;
using program::Program;

Design design_of(const std::string& mesh, const std::string& more = "") {
  const std::string text =
      "name = \"small\"\n[model]\npreset = \"nano-char\"\n"
      "shape = { layers = 4, heads = 2, kv_heads = 2, width = 16, ffn_width = 32, context = 8 }\n"
      "[train]\nglobal_batch_size = 8\nmicro_batch_size = 1\n[mesh]\naxes = " +
      mesh + "\n[pipeline]\norder = \"zero-bubble-h2\"\npost_validation = true\n" + more;
  const Run run = parse_run(text, "small.toml", {});
  int64_t ranks = run.mesh.axes.stage * run.mesh.axes.x * run.mesh.axes.data;
  return make_design(run, ranks, 24, 1);
}

/// The executed ops of a program, and where those with a name stand.
struct Listed {
  explicit Listed(const Program& program) {
    program::for_each_instance(program, [&](const Op& op, const program::Loops&) {
      if (op.kind != program::OpKind::kFree) ops.push_back(&op);
    });
  }
  std::vector<size_t> places(const std::string& name) const {
    std::vector<size_t> found;
    for (size_t at = 0; at < ops.size(); ++at)
      if (program::op_name(*ops[at]) == name) found.push_back(at);
    return found;
  }
  std::vector<const Op*> ops;
};

bool touches(const std::vector<program::Operand>& operands, const Program& program,
             const std::string& prefix) {
  return std::ranges::any_of(operands, [&](const program::Operand& operand) {
    return program.arrays[static_cast<size_t>(operand.array)].name.starts_with(prefix);
  });
}

const char* const kMeshes[] = {"{ stage = 2, data = 1 }", "{ stage = 4, data = 1 }",
                               "{ stage = 2, data = 2 }", "{ stage = 2, data = 1, x = 2 }"};

TEST(Postpone, TheUpdateStandsBeforeTheSumOfNorms) {
  for (const char* mesh : kMeshes)
    for (const char* preset : {"ddp", "zero1", "zero3"}) {
      SCOPED_TRACE(std::string(mesh) + " " + preset);
      const Design design =
          design_of(mesh, std::string("[placement]\npreset = \"") + preset + "\"\n");
      for (const Program& program : design.steady()) {
        const Listed listed(program);
        std::vector<size_t> sums;
        for (const size_t at : listed.places("all_reduce"))
          if (touches(listed.ops[at]->writes, program, "pending")) sums.push_back(at);
        ASSERT_EQ(sums.size(), 1u);
        const auto updates = listed.places("update"), keeps = listed.places("keep");
        ASSERT_EQ(updates.size(), keeps.size());
        ASSERT_FALSE(updates.empty());
        EXPECT_LT(listed.places("squared_norm").back(), listed.places("guess").front());
        EXPECT_LT(listed.places("guess").front(), keeps.front());
        for (size_t nth = 0; nth < updates.size(); ++nth) EXPECT_LT(keeps[nth], updates[nth]);
        EXPECT_LT(updates.back(), sums.front());
        EXPECT_TRUE(listed.places("clip_factor").empty());
      }
    }
}

/// Nothing that all ranks take part in holds up a step before its first gradient.
TEST(Postpone, TheNextStepValidatesBehindItsFirstForwards) {
  for (const char* mesh : kMeshes) {
    SCOPED_TRACE(mesh);
    const Design design = design_of(mesh);
    for (const Program& program : design.steady()) {
      const Listed listed(program);
      const auto validate = listed.places("validate"), amends = listed.places("amend");
      ASSERT_EQ(validate.size(), 1u);
      ASSERT_EQ(amends.size(), listed.places("update").size());
      size_t gradient = 0;
      while (!touches(listed.ops[gradient]->writes, program, "g.") ||
             program::op_name(*listed.ops[gradient]) == std::string("amend"))
        ++gradient;
      EXPECT_LT(validate.front(), amends.front());
      EXPECT_LT(amends.back(), gradient);
      const auto loads = listed.places("load");
      const auto before =
          std::ranges::count_if(loads, [&](size_t at) { return at < validate.front(); });
      EXPECT_GE(before, 1);
      for (size_t at = 0; at < validate.front(); ++at)
        EXPECT_FALSE(touches(listed.ops[at]->reads, program, "pending") ||
                     touches(listed.ops[at]->writes, program, "pending"));
    }
    // The first stage does as many forwards as H2 lets it before it waits for the others.
    const Listed first(design.steady().front());
    const auto loads = first.places("load");
    const int64_t stages = design.mesh.axis("stage").size;
    EXPECT_EQ(std::ranges::count_if(
                  loads, [&](size_t at) { return at < first.places("validate").front(); }),
              std::min<int64_t>(2 * stages - 1, static_cast<int64_t>(loads.size())));
  }
}

TEST(Postpone, WithoutItProgramsAreWhatTheyWere) {
  const char* const free = "[train]\nclip_norm = 0\n";
  const auto run_of = [&](const char* on) {
    const std::string text =
        "name = \"small\"\n[model]\npreset = \"nano-char\"\n[mesh]\naxes = { stage = 2 }\n"
        "[pipeline]\norder = \"zero-bubble-h2\"\npost_validation = " +
        std::string(on) + "\n" + free;
    return make_design(parse_run(text, "small.toml", {}), 2, 24, 1);
  };
  const Design off = run_of("false"), on = run_of("true");
  EXPECT_EQ(off.programs.find(kValidation), nullptr);
  ASSERT_NE(on.programs.find(kValidation), nullptr);
  for (size_t c = 0; c < 2; ++c) {
    const Listed without(off.steady()[c]), with(on.steady()[c]);
    for (const char* name : {"guess", "keep", "validate", "amend"})
      EXPECT_TRUE(without.places(name).empty());
    EXPECT_EQ(off.programs.classes(kEvaluation)[c], on.programs.classes(kEvaluation)[c]);
    // Copies of the optimizer's weights and moments, and the scalars of the step before.
    const int64_t more = program::resident_memory(on.steady()[c], static_cast<int64_t>(c)).total() -
                         program::resident_memory(off.steady()[c], static_cast<int64_t>(c)).total();
    int64_t state = 0;
    for (const program::ValueArray& array : off.steady()[c].arrays)
      for (const char* letter : {"w.", "m.", "v."})
        if (array.name.starts_with(letter))
          state +=
              array.count * program::value_bytes(off.steady()[c], array, static_cast<int64_t>(c));
    EXPECT_EQ(more, state + (int{kNumAgreed} + int{kNumKept} + int{kNumValidated}) * 8);
  }
}

}  // namespace
}  // namespace strait::strategy
