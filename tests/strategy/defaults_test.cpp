// "A key at its default is always accepted": each documented key, written alone into run files that
// are valid without it, up to the design of their programs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "strait/base/errors.h"
#include "strait/config/keys.h"
#include "strait/config/parse.h"
#include "strait/strategy/compose/design.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {
namespace {

using Sets = std::vector<std::string>;

struct Base {
  int64_t ranks;
  Sets sets;
};

const std::string kPairs =
    "cluster.levels=[{ name = \"pair\", size = 2, gb_per_second = 10.0 }, "
    "{ name = \"world\", size = 0, gb_per_second = 1.0 }]";

strait::Run run_of(const Base& base, const std::string& line = "") {
  Sets sets = base.sets;
  const bool chooses = std::ranges::any_of(
      sets, [](const std::string& set) { return set.starts_with("model.preset="); });
  if (!chooses) sets.emplace_back("model.preset=nano-char");
  sets.emplace_back("data.tokenizer=byte");
  return parse_run(line, "run.toml", sets);
}

std::string refusal(const strait::Run& run, int64_t ranks) {
  try {
    make_design(run, ranks, 256, 4);
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

std::vector<Base> bases() {
  std::vector<Base> all = {
      {1, {}},
      {2, {}},
      {1, {"train.precision=bf16"}},
      {2, {"optimizer.kind=sgd"}},
      {2, {"optimizer.schedule=constant"}},
      {2, {"data.validation_share=0"}},
      {2, {"tensor.overlap=oar,ors"}},
      {2, {"train.global_batch_tokens=1024", "data.document_separator=\\n"}},
      {2, {"mesh.axes.x=2"}},
      {2, {"mesh.axes.x=2", "tensor.sequence_parallel=true"}},
      {2, {"mesh.axes.z=2", "placement.preset=hsdp"}},
      {2, {"mesh.axes.stage=2"}},
      {2, {"mesh.axes.stage=2", "pipeline.order=interleaved", "pipeline.chunks_per_stage=2"}},
      {2, {"mesh.axes.sequence=2"}},
      {4, {"mesh.axes.sequence=2", "sequence.engine=zeppelin", "train.global_batch_tokens=1024"}},
      {2, {"placement.preset=ddp", "compression.codec=qsgd4/64"}},
      {2, {"placement.preset=ddp", "compression.codec=qsgd4/64", "compression.adapt=lgreco"}},
      {4, {"cluster.preset=frontier"}},
      {4, {kPairs}}};
  for (const char* preset :
       {"ddp", "zero1", "zero2", "zero3", "hsdp", "mics", "zero++", "zero-topo"})
    for (const char* precision : {"fp32", "bf16"})
      all.push_back({4,
                     {kPairs, std::string("placement.preset=") + preset,
                      std::string("train.precision=") + precision}});
  for (const char* policy : {"post-local-sgd", "slowmo", "diloco", "streaming-diloco", "co2"})
    all.push_back({2, {std::string("sync.policy=") + policy}});
  for (const char* model : {"llama-10m", "unet-nano", "gemma-3-270m"})
    all.push_back({2, {std::string("model.preset=") + model}});
  return all;
}

/// As docs/run-file.md has it; what the model's preset fills is at its default where it is filled
/// so. None: a placement's preset or a policy fills it, by ranks that only a run knows.
std::optional<std::string> default_of(const Key& key, const strait::Run& base) {
  const std::string_view filler = key.filled_by;
  const bool codec = key.name.starts_with("placement.codecs.");
  if (filler == "sync.policy" || (filler == "placement.preset" && !codec)) return std::nullopt;
  return value_text(key, filler == "model.preset" ? base : strait::Run());
}

TEST(Defaults, OfEveryKeyAreAcceptedInEveryRunFile) {
  for (const Base& base : bases()) {
    const strait::Run valid = run_of(base);
    SCOPED_TRACE(testing::PrintToString(base.sets));
    ASSERT_EQ(refusal(valid, base.ranks), "accepted");
    for (const Key& key : run_keys()) {
      const std::optional<std::string> text = default_of(key, valid);
      if (valid.is_set(key.name) || !text) continue;
      const std::string line = key.name + " = " + *text;
      EXPECT_EQ(refusal(run_of(base, line), base.ranks), "accepted") << line;
    }
  }
}

/// What "none" means in 16 bits: nothing smaller than what blocks compute on.
TEST(Defaults, CodecsOfNoneInBf16AreBf16) {
  for (const char* preset : {"ddp", "zero1", "zero2", "zero3", "hsdp"}) {
    const Base base{4, {kPairs, std::string("placement.preset=") + preset, "train.precision=bf16"}};
    const Placement filled = make_design(run_of(base), 4, 256, 4).placement;
    const Placement written =
        make_design(run_of(base, "placement.codecs = { weights = \"none\", update = \"none\" }"), 4,
                    256, 4)
            .placement;
    EXPECT_EQ(written.describe(), filled.describe()) << preset;
  }
}

/// Of several choices of a cluster those at their defaults choose nothing.
TEST(Defaults, TheChosenClusterStays) {
  const strait::Run run = run_of({4, {}},
                                 "[cluster]\npreset = \"localhost\"\nfile = \"\"\n"
                                 "levels = [{ name = \"pair\", size = 4, "
                                 "gb_per_second = 10.0 }]\n");
  EXPECT_EQ(make_design(run, 4, 256, 4).cluster.levels.front().name, "pair");
  const strait::Run preset = run_of({4, {}}, "[cluster]\npreset = \"frontier\"\nlevels = []\n");
  EXPECT_EQ(make_design(preset, 4, 256, 4).cluster.name, "frontier");
}

}  // namespace
}  // namespace strait::strategy
