// Stages of a pipeline: legal programs, the order of 1F1B, what is in flight, and its time.
#include "strait/strategy/pipeline/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/config/parse.h"
#include "strait/draft/block_kernels.h"
#include "strait/program/memory.h"
#include "strait/shape/shape.h"
#include "strait/sim/simulate.h"
#include "strait/strategy/compose/compose.h"
#include "strait/strategy/pipeline/orders.h"
#include "strait/verify/verify.h"

namespace strait::strategy {
namespace {

Cluster one_level(int64_t ranks) {
  Cluster cluster;
  cluster.name = "test";
  cluster.levels = {{"world", ranks, 1e9, 1e-6, 1}};
  cluster.ranks = ranks;
  cluster.flops_per_second_fp32 = 1e9;
  cluster.memory_bytes_per_second = 1e9;
  return cluster;
}

Mesh mesh_of(int64_t stages, int64_t data) {
  MeshOptions options;
  options.axes.stage = stages;
  return Mesh(options, stages * data);
}

ModelShape model_of(int64_t layers, bool tied = true) {
  ShapeOptions options;
  options.layers = layers;
  options.heads = options.kv_heads = 2;
  options.width = 16;
  options.ffn_width = 32;
  options.context = 4;
  options.tied_head = tied;
  return gpt2_shape(options, 11);
}

StepOptions options_of(int64_t accumulation) {
  StepOptions options;
  options.tokens = 4;
  options.accumulation = accumulation;
  options.optimizer = {{"m", "first_moment"}, {"v", "second_moment"}};
  return options;
}

/// Spans of ddp, zero1, zero2 and zero3 on `ranks` data ranks.
Placement placement_of(const std::string& preset, int64_t ranks) {
  Placement placement;
  placement.preset = preset;
  placement.ranks = ranks;
  if (preset != "ddp") placement.optimizer = ranks;
  if (preset == "zero2" || preset == "zero3") placement.gradients = ranks;
  if (preset == "zero3") placement.weights = ranks;
  placement.set_hops();
  return placement;
}

std::vector<program::Program> programs_of(const ModelShape& shape, const Mesh& mesh,
                                          const std::string& preset, const StepOptions& options) {
  const Cluster cluster = one_level(mesh.ranks());
  const Placement placement = placement_of(preset, mesh.data_ranks());
  return compose({shape, placement, cluster, mesh}, options);
}

/// Orders that m micro-batches can take, and their chunks.
std::vector<draft::PipelineForm> forms_of(int64_t stages, int64_t micro_batches) {
  std::vector<draft::PipelineForm> forms;
  for (const std::string& order : order_names())
    if (order != "interleaved")
      forms.push_back({order});
    else if (micro_batches % stages == 0)
      forms.push_back({order, 2});
  return forms;
}

/// What a stage computes, in order: "F2" forward and "B2" backward of micro-batch 2. A forward
/// begins with a load, and backwards come in the order of micro-batches.
std::vector<std::string> order_of(const program::Program& program, int64_t first_block) {
  std::vector<std::string> order;
  int64_t backwards = 0;
  program::for_each_instance(program, [&](const program::Op& op, const program::Loops& loops) {
    if (op.kernel == nullptr) return;
    const std::string name = op.kernel->name;
    const auto index = [&] { return evaluate(program::attribute<program::Index>(op, 0), loops); };
    if (name == "load") order.push_back("F" + std::to_string(index()));
    if (name == "backward" && index() == first_block)
      order.push_back("B" + std::to_string(backwards++));
  });
  return order;
}

TEST(Pipeline, OneStageChangesNothing) {
  const ModelShape shape = model_of(3);
  const Cluster cluster = one_level(2);
  const Placement placement = placement_of("zero1", 2);
  const std::vector<program::Program> classes =
      compose({shape, placement, cluster, mesh_of(1, 2)}, options_of(2));
  ASSERT_EQ(classes.size(), 1u);
  EXPECT_TRUE(classes[0].members.empty());
  EXPECT_EQ(first_stages(shape, mesh_of(1, 2)), std::vector<int64_t>(shape.units.size(), 0));
}

void expect_legal(const ModelShape& shape, const Placement& placement, const Mesh& mesh,
                  const StepOptions& options) {
  const Cluster cluster = one_level(mesh.ranks());
  const auto classes = compose({shape, placement, cluster, mesh}, options);
  ASSERT_EQ(static_cast<int64_t>(classes.size()), mesh.axis("stage").size);
  const std::vector<program::Problem> problems = program::verify(classes);
  ASSERT_TRUE(problems.empty()) << problems.front().message;
}

TEST(Pipeline, ProgramsAreLegal) {
  for (const int64_t stages : {2, 3, 4})
    for (const int64_t data : {1, 2})
      for (const char* preset : {"ddp", "zero1", "zero2", "zero3"})
        for (const int64_t micro_batches : {1, 2, 6, 9})
          for (const bool tied : {false, true}) {
            SCOPED_TRACE(testing::Message()
                         << stages << " stages, " << data << " data, " << preset << ", "
                         << micro_batches << " micro-batches, tied " << tied);
            for (const draft::PipelineForm& form : forms_of(stages, micro_batches)) {
              SCOPED_TRACE(form.order);
              StepOptions options = options_of(micro_batches);
              options.pipeline = form;
              const auto expect = [&] {
                expect_legal(model_of(8, tied), placement_of(preset, data), mesh_of(stages, data),
                             options);
              };
              for (const draft::Purpose purpose :
                   {draft::Purpose::kEvaluate, draft::Purpose::kPublish, draft::Purpose::kTrain}) {
                options.purpose = purpose;
                expect();
              }
              for (const draft::Validation validation :
                   {draft::Validation::kBehind, draft::Validation::kAlone}) {
                options.validation = validation;
                expect();
              }
            }
          }
}

/// On pairs of data ranks.
Placement preset_on_pairs(const std::string& preset, int64_t data,
                          const std::vector<std::string>& more = {}) {
  Cluster positions = one_level(data);
  positions.levels = {{"pair", 2, 4e9, 1e-6, 1}, {"world", data / 2, 1e9, 1e-6, 1}};
  std::vector<std::string> sets = {"placement.preset=" + preset};
  sets.insert(sets.end(), more.begin(), more.end());
  return resolve_placement(parse_run("", "test.toml", sets), positions, data);
}

/// A reduction of many stages lasts longer than a micro-step of a chunk with few blocks.
TEST(Pipeline, ReductionsThatOutlastMicroStepsAreLegal) {
  for (const int64_t stages : {2, 5, 6, 8})
    for (const int64_t data : {4, 8}) {
      SCOPED_TRACE(testing::Message() << stages << " stages, " << data << " data");
      StepOptions options = options_of(2 * stages);
      options.pipeline = {"interleaved", 2};
      expect_legal(model_of(2 * stages), preset_on_pairs("zero-topo", data), mesh_of(stages, data),
                   options);
    }
}

TEST(Pipeline, RandomFormsAreLegal) {
  const RandomStream random(19, "forms of pipelines");
  uint64_t drawn = 0;
  const auto draw = [&](int64_t below) {
    return static_cast<int64_t>(random.below(drawn++, static_cast<uint64_t>(below)));
  };
  const std::vector<std::string> presets = {"ddp",  "zero1", "zero2",  "zero3",
                                            "hsdp", "mics",  "zero++", "zero-topo"};
  for (int trial = 0; trial < 120; ++trial) {
    const int64_t stages = 2 + draw(7), data = int64_t{4} << draw(2);
    StepOptions options = options_of(stages * (1 + draw(3)));
    const std::string& order = order_names()[static_cast<size_t>(draw(std::ssize(order_names())))];
    options.pipeline = {order, order == "interleaved" ? 2 + draw(2) : 1};
    options.recompute.every = draw(3);
    options.in_backward = draw(3) == 0;
    const std::string& preset = presets[static_cast<size_t>(draw(std::ssize(presets)))];
    const int64_t prefetch = draw(4), layers = stages * options.pipeline.chunks * (1 + draw(2));
    SCOPED_TRACE(testing::Message()
                 << "trial " << trial << ": " << stages << " stages of " << data << ", "
                 << options.accumulation << " micro-batches, " << layers << " layers, " << order
                 << ", " << options.pipeline.chunks << " chunks, " << preset << ", prefetch "
                 << prefetch << ", recompute " << options.recompute.every << ", in backward "
                 << options.in_backward);
    Placement placement = preset_on_pairs(preset, data);
    placement.prefetch_units = prefetch;
    expect_legal(model_of(layers, draw(2) == 0), placement, mesh_of(stages, data), options);
    if (HasFatalFailure()) return;
  }
}

TEST(Pipeline, ProgramsWithCodedMessagesAreLegal) {
  for (const char* order : {"1f1b", "interleaved", "zero-bubble-h1"})
    for (const draft::Purpose purpose :
         {draft::Purpose::kTrain, draft::Purpose::kEvaluate, draft::Purpose::kPublish}) {
      StepOptions options = options_of(9);
      options.pipeline = {order, order == std::string("interleaved") ? 2 : 1, {}, "int8/16"};
      options.purpose = purpose;
      expect_legal(model_of(6), placement_of("zero3", 2), mesh_of(3, 2), options);
    }
}

TEST(Pipeline, RunsOneForwardOneBackward) {
  const auto classes = programs_of(model_of(4), mesh_of(2, 1), "ddp", options_of(4));
  EXPECT_EQ(order_of(classes[0], 0),
            (std::vector<std::string>{"F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"}));
  EXPECT_EQ(order_of(classes[1], 3),
            (std::vector<std::string>{"F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3"}));
}

TEST(Pipeline, HoldsAtMostSoManyMicroBatches) {
  const int64_t stages = 4;
  for (const int64_t micro_batches : {1, 2, 3, 9}) {
    const auto classes =
        programs_of(model_of(8), mesh_of(stages, 1), "ddp", options_of(micro_batches));
    for (int64_t stage = 0; stage < stages; ++stage) {
      int64_t in_flight = 0, most = 0;
      const int64_t first = stage == 0 ? 0 : 1 + 2 * stage;
      for (const std::string& entry : order_of(classes[static_cast<size_t>(stage)], first)) {
        in_flight += entry[0] == 'F' ? 1 : -1;
        most = std::max(most, in_flight);
      }
      EXPECT_EQ(in_flight, 0);
      EXPECT_EQ(most, std::min(stages - stage, micro_batches)) << "stage " << stage;
    }
  }
}

TEST(Pipeline, ProgramsGrowNeitherWithLayersNorWithMicroBatches) {
  for (const draft::PipelineForm& form : forms_of(2, 64)) {
    const auto operations = [&](int64_t layers, int64_t micro_batches) {
      StepOptions options = options_of(micro_batches);
      options.pipeline = form;
      int64_t most = 0;
      for (const program::Program& program :
           programs_of(model_of(layers), mesh_of(2, 2), "zero3", options))
        most = std::max(most, program::count_ops(program));
      return most;
    };
    SCOPED_TRACE(form.order);
    EXPECT_EQ(operations(32, 16), operations(96, 16));
    EXPECT_EQ(operations(32, 16), operations(32, 64));
  }
}

/// Sets what the ops of a program take: one block per run, embedding and head nothing.
void set_seconds(std::vector<program::Node>& nodes, double forward, double backward,
                 double weight) {
  for (program::Node& node : nodes) {
    if (auto* repeat = std::get_if<program::Repeat>(&node)) {
      set_seconds(repeat->body, forward, backward, weight);
      continue;
    }
    auto& op = std::get<program::Op>(node);
    if (op.kernel == nullptr || op.kernel->bound != program::Bound::kProducts) continue;
    const auto& range = std::get<program::IntegerRange>(op.attributes[draft::kSegments]);
    const auto begins_with = [&](Segment segment) {
      return range.begin == static_cast<int>(segment);
    };
    const bool waits = begins_with(Segment::kAttentionMoments) ||
                       begins_with(Segment::kMlpMoments);  // of weights apart: two ops
    const bool transformer =
        program::operand_in(op.reads, draft::kInput) || op.kernel == &draft::kBackwardWeight;
    const bool head = op.kernel == &draft::kForwardBackward;
    draft::set_flops(op, !transformer || head                  ? 0.0
                         : op.kernel == &draft::kForward       ? forward
                         : op.kernel == &draft::kBackward      ? backward + weight
                         : op.kernel == &draft::kBackwardInput ? backward
                         : waits                               ? weight / 2
                                                               : 0.0);
  }
}

/// Seconds of a step, and the most that a stage is idle between its first and its last block.
std::pair<double, double> makespan(const draft::PipelineForm& form, int64_t stages,
                                   int64_t micro_batches,
                                   draft::Validation validation = draft::Validation::kInStep) {
  StepOptions options = options_of(micro_batches);
  options.validation = validation;
  options.pipeline = form;
  Cluster cluster = one_level(stages);
  cluster.levels.front().bytes_per_second = 1e30;
  cluster.levels.front().latency_seconds = 0;
  cluster.levels.front().processor_share = 0;
  cluster.memory_bytes_per_second = cluster.codec_bytes_per_second = 1e30;
  cluster.flops_per_second_fp32 = cluster.model_flops_per_second_fp32 = 1;
  const Mesh mesh = mesh_of(stages, 1);
  const Placement placement = placement_of("ddp", 1);
  const ModelShape shape = model_of(stages * form.chunks, false);
  auto classes = compose({shape, placement, cluster, mesh}, options);
  for (program::Program& program : classes) set_seconds(program.body, 4, 5, 3);
  std::vector<trace::Recorder> recorders;
  const sim::Result result = sim::simulate(classes, cluster, &recorders);
  double idle = 0;
  for (const trace::Recorder& recorder : recorders) {
    double first = 1e30, last = 0, busy = 0;
    for (const trace::Span& span : recorder.spans()) {
      if (span.stream != program::kCompute || span.time.end - span.time.begin < 0.5) continue;
      first = std::min(first, span.time.begin);
      last = std::max(last, span.time.end);
      busy += span.time.end - span.time.begin;
    }
    idle = std::max(idle, last - first - busy);
  }
  return {result.seconds, idle};
}

/// With free links and equal stages of F = 4, B = 5 and W = 3 seconds.
TEST(Pipeline, SimulatedTimesAreThoseOfThePapers) {
  for (const int64_t p : {2, 3, 4, 8})
    for (const int64_t turns : {2, 5}) {
      const auto m = static_cast<double>(p * turns);
      const auto others = static_cast<double>(p - 1);
      SCOPED_TRACE(testing::Message() << p << " stages, " << m << " micro-batches");
      for (const char* order : {"gpipe", "1f1b"})
        EXPECT_NEAR(makespan({order}, p, p * turns).first, (m + others) * 12, 1e-6) << order;
      for (const int64_t v : {2, 3})
        EXPECT_NEAR(makespan({"interleaved", v}, p, p * turns).first,
                    (m * static_cast<double>(v) + others) * 12, 1e-6);
      EXPECT_NEAR(makespan({"zero-bubble-h1"}, p, p * turns).first, m * 12 + others * 6, 1e-6);
      EXPECT_NEAR(makespan({"zero-bubble-h1"}, p, p * turns).second, others * 6, 1e-6);
      EXPECT_NEAR(makespan({"zero-bubble-h2"}, p, p * turns).second, others * 3, 1e-6);
    }
}

/// Before a sum over all ranks, H2 takes (p - 1) F more than its work: so late its last stage
/// begins, which then never idles. Without one, steps are (p - 1)(F + B - 2 W) longer than that.
TEST(Pipeline, PostValidationTakesAwayTheWaitForAllStages) {
  for (const int64_t p : {2, 3, 4, 8})
    for (const int64_t turns : {2, 5}) {
      const auto m = static_cast<double>(p * turns);
      const auto others = static_cast<double>(p - 1);
      SCOPED_TRACE(testing::Message() << p << " stages, " << m << " micro-batches");
      const auto waiting = makespan({"zero-bubble-h2"}, p, p * turns);
      const auto behind = makespan({"zero-bubble-h2"}, p, p * turns, draft::Validation::kBehind);
      EXPECT_NEAR(waiting.first, m * 12 + others * 4, 1e-6);
      EXPECT_NEAR(behind.first, m * 12 + others * 3, 1e-6);
      EXPECT_NEAR(behind.second, waiting.second, 1e-6);
    }
}

/// H1 keeps the memory of 1F1B: what waits for its weights is no larger than what waits for its
/// backward. The split backward of one block takes a larger working set, which stages of some
/// blocks make up for.
TEST(Pipeline, H1TakesNoMoreMemoryThan1F1B) {
  for (const int64_t p : {2, 4})
    for (const char* family : {"gpt2", "llama"}) {
      ModelOptions model;
      model.family = family;
      model.shape = model_of(10 * p, false).options;
      model.shape.width = 32;
      model.shape.ffn_width = 128;
      model.shape.context = 64;
      const ModelShape shape = model_shape(model, 11);
      const auto most = [&](const char* order) {
        StepOptions options = options_of(3 * p);
        options.tokens = 64;
        options.pipeline.order = order;
        const auto peaks =
            program::peak_memories(programs_of(shape, mesh_of(p, 1), "ddp", options));
        return peaks[program::largest(peaks)].total();
      };
      EXPECT_LE(most("zero-bubble-h1"), most("1f1b")) << family << ", " << p << " stages";
      EXPECT_GT(most("zero-bubble-h2"), most("1f1b"));
      EXPECT_GT(most("gpipe"), most("1f1b"));
    }
}

TEST(Pipeline, HoldsEveryUnitOnceAndTiedOnesOnBothEnds) {
  const ModelShape tied = model_of(4, true), untied = model_of(4, false);
  EXPECT_EQ(first_stages(tied, mesh_of(2, 1)), (std::vector<int64_t>{0, 0, 0, 1, 1}));
  EXPECT_EQ(first_stages(untied, mesh_of(2, 1)), (std::vector<int64_t>{0, 0, 0, 1, 1, 1}));
}

TEST(Pipeline, MoreStagesThanBlocksAreRefused) {
  try {
    stage_classes(model_of(3), mesh_of(4, 1));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.place().key, "mesh.axes.stage");
    EXPECT_NE(std::string(error.what()).find("nearest valid value is 3"), std::string::npos);
  }
}

}  // namespace
}  // namespace strait::strategy
