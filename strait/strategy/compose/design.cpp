#include "strait/strategy/compose/design.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "strait/base/errors.h"
#include "strait/config/check_mesh.h"
#include "strait/config/cluster_file.h"
#include "strait/config/document_rows.h"
#include "strait/config/head_ranks.h"
#include "strait/config/keys.h"
#include "strait/config/place.h"
#include "strait/config/precision.h"
#include "strait/data/corpus.h"
#include "strait/draft/segment_ops.h"
#include "strait/shape/model_flops.h"
#include "strait/shape/modules.h"
#include "strait/strategy/compose/compose.h"
#include "strait/strategy/compose/expected_batch.h"
#include "strait/strategy/finish/step_values.h"
#include "strait/strategy/pipeline/cuts.h"
#include "strait/strategy/pipeline/pipeline.h"
#include "strait/strategy/sharding/layer_codecs.h"
#include "strait/strategy/tiles/chunks.h"
#include "strait/topology/positions.h"
#include "strait/verify/verify.h"

namespace strait::strategy {
namespace {

draft::OptimizerState optimizer_state(const OptimizerOptions& options) {
  if (options.kind == "adamw") return {{"m", "first_moment"}, {"v", "second_moment"}};
  return {{"m", "momentum"}};
}

/// The cluster, with compute rates for the threads that each rank uses.
Cluster cluster_of(const Run& run, const Resolved& batch) {
  Cluster cluster = resolve_cluster(run, batch.ranks);
  if (!cluster.shares_cores) return cluster;
  cluster.scale_compute(cluster.cores_of_rank(batch.threads_per_rank) /
                        cluster.cores_of_rank(cluster.cores_per_rank));
  cluster.cores_per_rank = batch.threads_per_rank;
  return cluster;
}

/// Which programs run next. Where ranks keep secondary copies of the weights, a step after one that
/// changed nothing uses them, and so does an evaluation after its first batch.
std::vector<program::Rule> rules_of(bool publishes, const Placement& placement,
                                    const Policy& policy, bool in_backward) {
  const std::optional<program::AgreedScalar> always;
  std::vector<program::Rule> rules = border_rules(policy, kForStep, [&](const Border& border) {
    return in_backward && in_step(placement, border);
  });
  rules.push_back({kForEnd, "*", always, {}});
  rules.push_back({kForShow, "*", always, {}});
  const std::vector<Border> borders = borders_of(policy);
  if (!borders.empty()) rules.back().kinds = {border_kind({})};
  rules.push_back({kForStart, "*", always, {}});
  if (publishes) rules.back().kinds = {kPublish};
  if (placement.secondary > 1) {
    const program::AgreedScalar finite{"results", kFinite};
    for (const auto& [purpose, changed, unchanged] :
         {std::tuple{kForStep, kSteady, kUnchanged},
          std::tuple{kForEvaluation, kEvaluation, kEvaluationUnchanged}}) {
      rules.push_back({purpose, "", always, {changed}});
      rules.push_back({purpose, kPublish, always, {changed}});
      for (const Border& border : borders)
        rules.push_back({purpose, border_kind(border), always, {changed}});
      if (purpose == kForEvaluation)
        for (const char* after : {kEvaluation, kEvaluationUnchanged})
          rules.push_back({purpose, after, always, {unchanged}});
      rules.push_back({purpose, "*", finite, {changed}});
      rules.push_back({purpose, "*", always, {unchanged}});
    }
    return rules;
  }
  rules.push_back({kForStep, "*", always, {kSteady}});
  rules.push_back({kForEvaluation, "*", always, {kEvaluation}});
  return rules;
}

/// Below this many tokens of a chunk a kernel of attention is slow, which costs a ring more than it
/// hides (specs: DistCA's measure, 128 tokens per shard).
constexpr int64_t kLeastChunkOfRing = 128;

/// Neighbours along an axis that the outermost level between its ranks does not part.
int64_t unparted_ranks(const Cluster& cluster, const MeshAxis& axis) {
  const int64_t level = cluster.level_between(0, (axis.size - 1) * axis.stride);
  if (level == 0) return axis.size;
  const int64_t inside = cluster.group_size(level - 1);
  return inside % axis.stride == 0 ? inside / axis.stride : 1;
}

/// Ranks of the axis sequence that exchange heads; 1: none do.
int64_t head_ranks(const Run& run, const Cluster& cluster, const MeshAxis& axis) {
  if (run.sequence.engine == "heads") return axis.size;
  if (run.sequence.engine != "heads_ring" || axis.size == 1) return 1;
  if (const int64_t given = given_head_ranks(run.sequence).value_or(0); given > 0) return given;
  // Keys alone, which travel beside computing, cross the slowest links.
  const int64_t most = std::gcd(axis.size, unparted_ranks(cluster, axis));
  return std::gcd(most, run.model.shape.kv_heads / run.mesh.axes.x);
}

SequenceEngine sequence_engine(const Run& run, int64_t tokens, int64_t head_ranks) {
  if (head_ranks > 1) return SequenceEngine::kHeads;
  if (run.sequence.engine == "heads_ring") return SequenceEngine::kRing;
  if (plans_documents(run)) return SequenceEngine::kRing;
  const int64_t chunk = tokens / (2 * run.mesh.axes.sequence);
  const bool by_choice = run.sequence.engine == "auto" && chunk >= kLeastChunkOfRing;
  return by_choice || run.sequence.engine == "ring" ? SequenceEngine::kRing
                                                    : SequenceEngine::kGathered;
}

/// What a rank has of each sequence.
int64_t local_tokens(const Design& design) {
  return design.batch.sequence_tokens / design.mesh.axis("sequence").size;
}

/// Modelled seconds of a micro-batch in each block, up to a factor: products, and attention as so
/// many of them.
std::vector<double> block_times(const Design& design, const draft::Recompute& recompute) {
  const ModelShape& shape = design.layout.local_shape();
  const double slower = design.cluster.model_flops_per_second(design.dtype) /
                            design.cluster.attention_flops_per_second(design.dtype) -
                        1;
  std::vector<double> times;
  for (size_t block = 0; block < shape.blocks.size(); ++block) {
    const auto number = static_cast<int64_t>(block);
    const BlockSizes sizes = block_sizes(shape, number, design.batch.micro_batch_size,
                                         local_tokens(design), design.dtype);
    const bool again =
        shape.blocks[block].kind == BlockKind::kTransformer && recompute.applies(number - 1);
    const double forwards = again ? 2 : 1;
    times.push_back(forwards * sizes.forward_flops + sizes.backward_flops +
                    (forwards + 2) * slower * sizes.attention_flops);
  }
  return times;
}

/// The order of [pipeline], and where its stages are cut.
draft::PipelineForm pipeline_form(const Design& design) {
  const PipelineOptions& options = design.run.pipeline;
  const int64_t stages = design.mesh.axis("stage").size;
  draft::PipelineForm form{options.order, options.chunks_per_stage, {}, options.activation_codec};
  if (stages == 1) return form;
  for (const int64_t layer : parse_cuts(options.cuts)) form.cuts.push_back(layer + 1);
  if (form.cuts.empty())
    form.cuts =
        balanced_cuts(block_times(design, draft::parse_recompute(design.run.train.recompute)),
                      stages * form.chunks);
  return form;
}

/// The run's mesh; its data ranks are cut into the replicas of the policy, which is filled in.
Mesh mesh_of(const Run& run, int64_t ranks, const Cluster& cluster, Policy& policy) {
  const Mesh mesh(run.mesh, ranks);
  policy = resolve_policy(run, positions_of(cluster, mesh), mesh.data_ranks());
  return mesh.with_replicas(policy.replicas);
}

StepOptions step_options(const Design& design) {
  const Run& run = design.run;
  StepOptions options;
  options.pipeline = design.pipeline;
  options.micro_batch_size = design.batch.micro_batch_size;
  options.tokens = local_tokens(design);
  options.accumulation = design.batch.accumulation;
  options.dtype = design.dtype;
  options.recompute = draft::parse_recompute(run.train.recompute);
  options.optimizer = optimizer_state(run.optimizer);
  options.documents =
      !design.planner && (has_documents(run.data) || run.train.global_batch_tokens > 0);
  if (options.documents && design.shape.engine == SequenceEngine::kHeads)
    options.row_start_tokens = options.tokens * run.mesh.axes.sequence;
  options.in_backward = run.optimizer.in_backward;
  options.local_steps = design.policy.local_steps();
  options.hides_sums = run.tensor.overlaps("oar");
  options.tiles = draft::parse_tiles(run.tensor.tiles);
  if (run.pipeline.post_validation) options.validation = draft::Validation::kBehind;
  return options;
}

Ingredients ingredients(const Design& design, const Placement& placement) {
  return {design.layout.local_shape(),
          placement,
          design.cluster,
          design.mesh,
          design.policy,
          design.adapt};
}

/// A void step leaves nothing that it does not take back: its codecs remember nothing, and no copy
/// of its weights outlives it.
void check_post_validation(const Design& design) {
  if (!design.run.pipeline.post_validation) return;
  const auto refuse = [&](const std::string& what, const std::string& instead) {
    refuse_key(design.run, "pipeline.post_validation",
               fmt::format("pipeline.post_validation = true cannot take effect with {}; the "
                           "nearest valid value is false, or set {}",
                           what, instead));
  };
  if (design.placement.secondary > 1)
    refuse("secondary copies of weights, which outlive a step",
           "placement.spans.secondary = \"none\"");
  for (const codec::CodecSpec& codec : design.placement.codecs.gradients)
    if (codec.error_feedback)
      refuse(fmt::format("codec {}, which remembers what it has sent", codec::print_codec(codec)),
             "a codec without error feedback, as int8");
}

/// Products that cannot be taken apart although the run asks for it.
void check_tiles(const Design& design) {
  const draft::Tiles tiles = draft::parse_tiles(design.run.tensor.tiles);
  const bool shards = design.shape.splits_rows;
  if (tiles.choice != draft::Tiles::Choice::kOn) return;
  const auto refuse = [&](const std::string& why, const std::string& nearest) {
    refuse_key(design.run, "tensor.tiles",
               fmt::format("tensor.tiles = \"{}\" cannot take any product apart: {}; the nearest "
                           "valid value is {}",
                           design.run.tensor.tiles, why, nearest));
  };
  if (tiles.chunks == 1 && !shards)
    refuse("without tensor.sequence_parallel one chunk is the whole product", "\"off\"");
  bool found = false;
  for (const program::Program& program : design.steady())
    program::for_each_op(program.body, [&](const program::Op& op) {
      found = found || (op.kernel != nullptr && draft::works_on_rows(op));
    });
  if (found) return;
  const Resolved& batch = design.batch;
  const int64_t tokens = local_tokens(design), share = batch.global_batch_size / batch.data_ranks;
  const int64_t rows = batch.micro_batch_size * tokens;
  const int64_t least =
      (tiles.chunks > 0 ? 1 : kLeastChunkRows) * (shards ? design.run.mesh.axes.x : int64_t{2});
  const std::string why =
      rows < least ? fmt::format("a micro-batch has {} rows of a rank, {} {}", rows,
                                 shards ? "a chunk of every shard" : "two chunks", least)
      : shards     ? "a level of the cluster parts the ranks of x, so that exchanges go inside its "
                     "parts first"
                   : "smaller sums would go another way over the levels of the cluster";
  std::string nearest = "\"off\"";
  int64_t larger = batch.micro_batch_size;
  while (larger < share && (larger * tokens < least || share % larger != 0)) ++larger;
  if (rows < least && larger * tokens >= least)
    nearest += fmt::format(", or train.micro_batch_size = {}", larger);
  refuse(why, nearest);
}

/// By rank.
using Plans = std::vector<std::shared_ptr<const sequence::Plan>>;

struct ExpectedPlans {
  Plans median;                  // of the batch that stands for all
  Plans widest;                  // empty: no batch is known
  std::vector<int64_t> lengths;  // of the documents of `median`
};

/// Every rank has the plan of its row; equal rows have one.
Plans plans_of(const Design& design, const RowLengths& rows) {
  std::map<std::vector<int64_t>, std::shared_ptr<const sequence::Plan>> known;
  Plans plans;
  for (int64_t rank = 0; rank < design.batch.ranks; ++rank) {
    const auto& lengths = rows[static_cast<size_t>(design.layout.batch_position(rank))];
    std::shared_ptr<const sequence::Plan>& plan = known[lengths];
    if (!plan) plan = design.planner->plan(lengths);
    plans.push_back(plan);
  }
  return plans;
}

ExpectedPlans expected_plans(const Design& design, const Corpus* corpus) {
  const BatchPlanner& planner = *design.planner;
  const int64_t data_ranks = design.batch.data_ranks;
  if (corpus != nullptr) {
    const ExpectedLengths lengths = expected_lengths(design.run, data_ranks, planner, *corpus);
    ExpectedPlans plans{plans_of(design, lengths.median), plans_of(design, lengths.widest), {}};
    for (const std::vector<int64_t>& row : lengths.median)
      plans.lengths.insert(plans.lengths.end(), row.begin(), row.end());
    return plans;
  }
  std::vector<int64_t> lengths =
      planner.assumed_lengths(document_rows(design.run, data_ranks).documents);
  return {Plans(static_cast<size_t>(design.batch.ranks), planner.plan(lengths)), {}, lengths};
}

/// Of a batch of documents of these lengths; of sequences as long as the batch's, or as its
/// documents are on average, where there are none.
double flops_per_token(const Design& design, std::vector<int64_t> lengths) {
  if (lengths.empty()) {
    const int64_t documents = design.shape.document_tokens;
    lengths = {documents > 0 ? documents : design.run.model.shape.context};
  }
  return model_flops(design.shape, lengths) /
         static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
}

program::ProgramSet compose_all(const Design& design, Plans plans) {
  program::ProgramSet set;
  StepOptions options = step_options(design);
  Ingredients from = ingredients(design, design.placement);
  from.plans = std::move(plans);
  const auto made = [&](Purpose purpose) {
    options.purpose = purpose;
    return compose(from, options);
  };
  const auto add = [&](std::vector<program::Program> classes) {
    std::string kind = classes.front().step_kind;
    set.kinds.push_back({std::move(kind), std::move(classes)});
  };
  add(made(Purpose::kTrain));
  add(made(Purpose::kEvaluate));
  std::vector<program::Program> publish = made(Purpose::kPublish);
  const bool publishes = std::ranges::any_of(
      publish, [](const program::Program& program) { return !program.body.empty(); });
  if (publishes) add(std::move(publish));
  const bool secondary = design.placement.secondary > 1;
  if (secondary) {
    options.weights_unchanged = true;
    add(made(Purpose::kTrain));
    add(made(Purpose::kEvaluate));
  }
  for (const Border& border : borders_of(design.policy)) add(compose_border(from, options, border));
  if (options.validation == draft::Validation::kBehind) {
    options.validation = draft::Validation::kAlone;
    add(made(Purpose::kTrain));
  }
  set.rules = rules_of(publishes, design.placement, design.policy, options.in_backward);
  if (design.run.pipeline.post_validation)
    set.rules.push_back({kForSettling, "*", std::nullopt, {kValidation}});
  return set;
}

}  // namespace

namespace {

Design composed(const Run& run, int64_t ranks, int64_t vocabulary, int64_t cores,
                const Corpus* corpus) {
  validate_run(run, ranks);
  Design design;
  design.run = run;
  design.batch = cores > 0 ? resolve_batch(run, ranks, cores) : resolve_batch(run, ranks);
  design.cluster = cluster_of(run, design.batch);
  design.shape = model_shape(run.model, vocabulary);
  design.mesh = mesh_of(run, ranks, design.cluster, design.policy);
  design.shape.head_ranks = head_ranks(run, design.cluster, design.mesh.axis("sequence"));
  design.shape.engine = sequence_engine(run, design.batch.sequence_tokens, design.shape.head_ranks);
  design.shape.splits_rows = run.tensor.sequence_parallel;
  if (corpus != nullptr) {
    design.shape.document_tokens = attended_length(run, *corpus);
    const int64_t members = run.mesh.axes.sequence / design.shape.head_ranks;
    design.shape.slowest_attention =
        slowest_attention(run, design.batch.data_ranks, members, *corpus);
  }
  design.dtype = dtype_of(run.train.precision);
  design.layout = Layout(design.shape, design.mesh);  // of the blocks' sizes, to cut stages
  design.pipeline = pipeline_form(design);
  design.layout =
      Layout(design.shape, design.mesh, first_stages(design.shape, design.mesh, design.pipeline));
  design.placement =
      resolve_placement(run, positions_of(design.cluster, design.mesh), design.layout.positions());
  if (design.placement.replicas() > 1)
    design.placement.layers =
        layer_codecs(run.compression, design.shape, design.placement.replicas());
  check_post_validation(design);
  // On one rank nothing is sent, so there is nothing to choose.
  const AdaptPolicy adapt = resolve_adapt_policy(run);
  if (!design.placement.layers.empty()) design.adapt = adapt;
  if (design.adapt.adapts() && adapted_layers(design.shape, design.placement.layers).empty())
    refuse_key(run, "compression.adapt",
               fmt::format("compression.adapt = \"{}\" cannot take effect: no layer is sent in "
                           "compression.codec = \"{}\"; the nearest valid choice is \"none\", or "
                           "compression.codec = \"qsgd4\" with a smaller "
                           "compression.skip_below_elements",
                           run.compression.adapt, run.compression.codec));
  require_compressed_layer(run, design.shape, design.placement.layers);
  design.placement.layers_change = design.adapt.adapts();
  if (plans_documents(run))
    design.planner = std::make_shared<const BatchPlanner>(run, design.cluster, design.mesh,
                                                          design.layout.local_shape(),
                                                          design.batch.sequence_tokens);
  const ExpectedPlans plans = design.planner ? expected_plans(design, corpus) : ExpectedPlans{};
  design.model_flops_per_token = flops_per_token(design, plans.lengths);
  design.programs = compose_all(design, plans.median);
  if (!plans.widest.empty()) {
    Ingredients from = ingredients(design, design.placement);
    from.plans = plans.widest;
    design.widest = compose(from, step_options(design));
  }
  check_tiles(design);
  program::verify_or_throw(design.programs);
  design.round = round_of(design.programs);
  return design;
}

}  // namespace

Design make_design(const Run& run, int64_t ranks, int64_t vocabulary, int64_t cores,
                   const Corpus* corpus) {
  return with_place(run, [&] { return composed(run, ranks, vocabulary, cores, corpus); });
}

/// Only steps of training send gradients.
program::ProgramSet compose_with_layers(const Design& design, std::vector<codec::Runs> layers) {
  Placement placement = design.placement;
  placement.layers = std::move(layers);
  StepOptions options = step_options(design);
  options.purpose = Purpose::kTrain;
  program::ProgramSet set = design.programs;
  for (program::StepKind& kind : set.kinds)
    if (kind.name == kSteady) kind.classes = compose(ingredients(design, placement), options);
  program::verify_or_throw(set);
  return set;
}

program::Program compose_for_plan(const Design& design, const std::string& kind, int64_t rank,
                                  std::shared_ptr<const sequence::Plan> plan) {
  StepOptions options = step_options(design);
  const bool trains = kind == kSteady || kind == kUnchanged;
  options.purpose = trains ? Purpose::kTrain : Purpose::kEvaluate;
  options.weights_unchanged = kind == kUnchanged || kind == kEvaluationUnchanged;
  options.plan = std::move(plan);
  return compose_for_rank(ingredients(design, design.placement), options, rank);
}

int64_t design_vocabulary(const Run& run, bool& assumed) {
  assumed = false;
  if (const std::optional<int64_t> known = known_vocabulary(run.data)) return *known;
  if (run.model.modules && run.data.path.empty()) return run.model.modules->vocabulary;
  if (!run.data.path.empty()) return make_corpus(run.data).tokenizer->vocabulary_size();
  assumed = true;
  if (run.model.shape.vocabulary > 0) return run.model.shape.vocabulary;
  return 256;
}

std::optional<Corpus> design_corpus(const Run& run) {
  const bool counts = run.train.global_batch_tokens > 0 || has_documents(run.data);
  if (!counts || run.data.path.empty()) return std::nullopt;
  return make_corpus(run.data);
}

}  // namespace strait::strategy
