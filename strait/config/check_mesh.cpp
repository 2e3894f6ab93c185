#include "strait/config/check_mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strait/base/errors.h"
#include "strait/codec/codec.h"
#include "strait/config/check_chain.h"
#include "strait/config/document_rows.h"
#include "strait/config/head_ranks.h"
#include "strait/config/keys.h"
#include "strait/config/place.h"
#include "strait/shape/split.h"
#include "strait/shape/unet.h"
#include "strait/topology/mesh.h"
#include "strait/topology/nearest.h"
#include "strait/topology/positions.h"

namespace strait {
namespace {

using NamedSize = std::pair<const char*, int64_t>;

/// The axes that are not data, in the order in which they take their share of the ranks.
std::vector<NamedSize> other_axes(const MeshAxes& axes) {
  return {{"x", axes.x},
          {"y", axes.y},
          {"z", axes.z},
          {"sequence", axes.sequence},
          {"stage", axes.stage}};
}

bool is_zero_bubble(const Run& run) { return run.pipeline.order.starts_with("zero-bubble"); }

void refuse(const Run& run, const std::string& name, const std::string& reason,
            const std::string& nearest) {
  const std::string value = value_text(*find_key(name), run);
  refuse_key(
      run, name,
      fmt::format("{} = {} {}; the nearest valid value is {}", name, value, reason, nearest));
}

/// What sizes of x and y divide of the model.
GridSizes grid_sizes_of(const Run& run) {
  if (run.model.family == kUnetFamily) return largest_grid(run.model.unet);
  if (is_chain(run)) return {1, 1};
  GridSizes largest = largest_grid(run.model.shape, run.model.shape.vocabulary);
  if (is_family(run.model.family) &&
      block_style(run.model.family).query_key_norm == QueryKeyNorm::kWidth)
    largest.x = 1;
  return largest;
}

/// Of the sizes of an axis that divide the ranks `left` the nearest that the model takes too.
int64_t nearest_size(const Run& run, const std::string& axis, int64_t left, int64_t size) {
  const GridSizes largest = grid_sizes_of(run);
  if (axis == "x") left = std::gcd(left, largest.x);
  if (axis == "y") left = std::gcd(left, largest.y);
  int64_t nearest = nearest_divisor(left, size);
  if (axis == "stage") {
    nearest = std::min(nearest, std::max<int64_t>(middle_blocks(run), 1));
    while (left % nearest != 0) --nearest;
  }
  return nearest;
}

/// Without stages no key of the section does anything.
void check_stages(const Run& run) {
  static const Run defaults;
  for (const char* name : {"pipeline.order", "pipeline.chunks_per_stage", "pipeline.cuts",
                           "pipeline.activation_codec", "pipeline.post_validation"}) {
    const Key& key = *find_key(name);
    if (same_value(key, run, defaults)) continue;
    std::string nearest = value_text(key, defaults) + ", or mesh.axes.stage = 2";
    if (key.name == "pipeline.post_validation")
      nearest += " with pipeline.order = \"zero-bubble-h2\"";
    refuse(run, name, "cannot take effect with mesh.axes.stage = 1", nearest);
  }
}

void check_chunks(const Run& run) {
  const int64_t stages = run.mesh.axes.stage, chunks = run.pipeline.chunks_per_stage;
  const int64_t layers = middle_blocks(run);
  const std::string blocks = middle_blocks_name(run);
  const bool interleaved = run.pipeline.order == "interleaved";
  if (!interleaved && chunks > 1)
    refuse(run, "pipeline.chunks_per_stage",
           fmt::format("cannot take effect with pipeline.order = \"{}\"", run.pipeline.order),
           "1, or pipeline.order = \"interleaved\"");
  if (stages > layers)
    refuse_key(run, "mesh.axes.stage",
               fmt::format("mesh.axes.stage = {}: every stage needs one of the {} {}; the nearest "
                           "valid value is {}",
                           stages, layers, blocks, nearest_size(run, "stage", stages, stages)));
  if (interleaved && layers / stages < 2)
    refuse(run, "pipeline.order",
           fmt::format("gives every stage two runs of blocks or more, but {} stages have {} {}",
                       stages, layers, blocks),
           "\"1f1b\"");
  if (interleaved && chunks == 1)
    refuse_key(run, "pipeline.chunks_per_stage",
               "pipeline.chunks_per_stage = 1, but pipeline.order = \"interleaved\" gives every "
               "stage several runs of blocks; the nearest valid value is 2");
  if (chunks > layers / stages)
    refuse(run, "pipeline.chunks_per_stage",
           fmt::format("makes {} runs of blocks of {} stages, but there are {} {}", chunks * stages,
                       stages, layers, blocks),
           std::to_string(layers / stages));
}

void check_cuts(const Run& run) {
  const std::vector<int64_t> cuts = with_place(run, [&] { return parse_cuts(run.pipeline.cuts); });
  if (cuts.empty()) return;
  const int64_t layers = middle_blocks(run);
  const int64_t runs = run.mesh.axes.stage * run.pipeline.chunks_per_stage;
  bool good = static_cast<int64_t>(cuts.size()) == runs - 1;
  for (size_t i = 0; i < cuts.size(); ++i)
    good = good && cuts[i] > (i == 0 ? 0 : cuts[i - 1]) && cuts[i] < layers;
  if (good) return;
  std::vector<int64_t> even;
  for (int64_t at = 1; at < runs; ++at) even.push_back(layers * at / runs);
  refuse(
      run, "pipeline.cuts",
      fmt::format("does not cut {} {} into {} runs, which takes {} ascending numbers from 1 to {}",
                  layers, middle_blocks_name(run), runs, runs - 1, layers - 1),
      fmt::format("\"{}\", or \"auto\"", fmt::join(even, ",")));
}

void check_split_backward(const Run& run) {
  if (!is_zero_bubble(run)) return;
  if (is_chain(run))
    refuse(run, "pipeline.order",
           fmt::format("splits the backward pass, but with model.family = \"{}\" a block makes "
                       "the gradients of its input and its weights at once",
                       run.model.family),
           "\"1f1b\"");
  if (run.runtime.device == "cuda")
    refuse(run, "pipeline.order",
           "splits the backward pass, but with runtime.device = \"cuda\" blocks run as one piece",
           "\"1f1b\"");
  if (run.pipeline.order != "zero-bubble-h2" || run.pipeline.post_validation) return;
  const auto needs = [&](const std::string& what, const std::string& instead) {
    refuse(
        run, "pipeline.order",
        fmt::format("gains nothing where all stages wait for each other before the update, as {} "
                    "makes them",
                    what),
        fmt::format("\"zero-bubble-h1\", or set {} or pipeline.post_validation = true", instead));
  };
  if (run.train.clip_norm > 0)
    needs(fmt::format("train.clip_norm = {:g}", run.train.clip_norm), "train.clip_norm = 0");
  if (run.train.non_finite == "skip")
    needs("train.non_finite = \"skip\"", "train.non_finite = \"stop\"");
}

/// Only H2 ends its stages one after another, so that only there a wait for all of them costs time;
/// and updates that are taken back must leave nothing else behind.
void check_post_validation(const Run& run) {
  if (!run.pipeline.post_validation) return;
  const char* const key = "pipeline.post_validation";
  const auto conflicts = [&](const std::string& with, const std::string& instead) {
    refuse(run, key, "cannot take effect with " + with, "false, or set " + instead);
  };
  if (run.pipeline.order != "zero-bubble-h2")
    conflicts(fmt::format("pipeline.order = \"{}\", whose stages wait for each other anyway",
                          run.pipeline.order),
              "pipeline.order = \"zero-bubble-h2\"");
  if (run.optimizer.in_backward)
    conflicts("optimizer.in_backward = true, which validates nothing",
              "optimizer.in_backward = false");
  if (run.sync.policy != "every-step")
    conflicts(fmt::format("sync.policy = \"{}\", whose replicas agree at borders of rounds",
                          run.sync.policy),
              "sync.policy = \"every-step\"");
}

/// Why no activation can be sent in the kind of codec, and the nearest kind; none: it can.
struct Unfit {
  std::string reason, nearest;
};
std::optional<Unfit> unfit_for_activations(const Run& run, const codec::CodecSpec& codec) {
  using enum codec::CodecKind;
  const std::string& precision = run.train.precision;
  if (codec::is_low_rank(codec))
    return Unfit{"sends factors of matrices, which activations are not", "int8"};
  if (codec::is_sparse(codec)) return Unfit{"leaves out numbers that the next stage needs", "int8"};
  if ((codec.kind == kBfloat16 && precision == "bf16") ||
      (codec.kind == kFloat16 && precision == "fp16"))
    return Unfit{fmt::format("is what activations are in train.precision = \"{}\"", precision),
                 "none"};
  if (beyond_range(run, codec))
    return Unfit{
        "makes 0 of numbers beyond 65504, and only train.precision = \"fp16\" scales values into "
        "its range",
        precision == "bf16" ? "none" : "bf16"};
  return std::nullopt;
}

void check_activation_codec(const Run& run) {
  const char* const key = "pipeline.activation_codec";
  const std::string& text = run.pipeline.activation_codec;
  const codec::CodecSpec codec = codec::parse_codec(text, key);
  const std::optional<Unfit> unfit = unfit_for_activations(run, codec);
  const std::string nearest = toml_string(unfit ? unfit->nearest : text.substr(0, text.find('+')));
  if (unfit && !codec.error_feedback) refuse(run, key, unfit->reason, nearest);
  if (codec.error_feedback)
    refuse(run, key, "feeds errors back, but every micro-batch has activations of its own",
           nearest);
  if (codec.stochastic)
    refuse(run, key, "draws roundings, and only gradients have random numbers of their own",
           nearest);
}

}  // namespace

bool beyond_range(const Run& run, const codec::CodecSpec& codec) {
  return codec.kind == codec::CodecKind::kFloat16 && run.train.precision != "fp16";
}

void check_mesh_sizes(const Run& run, int64_t ranks) {
  int64_t left = ranks;
  std::string others;
  for (const auto& [name, size] : other_axes(run.mesh.axes)) {
    const std::string key = fmt::format("mesh.axes.{}", name);
    if (size < 1 || left % size != 0)
      refuse_key(run, key,
                 fmt::format("{} = {} does not divide {} of the {} ranks; the nearest valid value "
                             "is {}",
                             key, size, left, ranks, nearest_size(run, name, left, size)));
    left /= size;
    if (size > 1) others += fmt::format("{}{} = {}", others.empty() ? "" : ", ", name, size);
  }
  const int64_t data = run.mesh.axes.data;
  if (data == 0 || data == left) return;
  refuse_key(run, "mesh.axes.data",
             fmt::format("mesh.axes.data = {}, but the run has {} ranks and {}; the nearest valid "
                         "value is {} (or 0, the rest)",
                         data, ranks, others.empty() ? "every other axis is 1" : others, left));
}

namespace {

/// Of the `ranks` those that x, y and data share.
GridSizes grid_of(const Run& run, int64_t ranks) {
  const MeshAxes& axes = run.mesh.axes;
  return {axes.x, axes.y, ranks / std::max<int64_t>(axes.z * axes.sequence * axes.stage, 1)};
}

/// Modules are whole, but their order is known, and their weights move as any others do. Ranks of x
/// and y share the blocks of a U-Net.
void check_mesh_chain(const Run& run, int64_t ranks) {
  const MeshAxes& axes = run.mesh.axes;
  const bool shares = run.model.family == kUnetFamily;
  for (const auto& [name, size] :
       {NamedSize{"x", shares ? 1 : axes.x}, NamedSize{"y", shares ? 1 : axes.y},
        NamedSize{"sequence", axes.sequence}})
    if (size > 1)
      refuse_key(run, fmt::format("mesh.axes.{}", name),
                 fmt::format("mesh.axes.{} = {} cannot take effect with model.family = \"{}\", "
                             "whose blocks no ranks share; the nearest valid value is 1",
                             name, size, run.model.family));
  if (shares) with_place(run, [&] { check_unet_grid(run.model.unet, grid_of(run, ranks)); });
}

/// Why a chain takes no key that acts on single products of a block.
std::string uncut_blocks(const Run& run) {
  return fmt::format("with model.family = \"{}\", whose blocks are not cut into products and rows",
                     run.model.family);
}

/// Without a grid no sum of activations can be hidden, and without products to hide it behind.
void check_overlap(const Run& run) {
  if (run.tensor.overlaps("oar")) return;
  const char* const key = "tensor.overlap";
  if (is_chain(run))
    refuse(run, key, "lacks \"oar\" without effect " + uncut_blocks(run), "one with \"oar\"");
  if (run.mesh.axes.x > 1 || run.mesh.axes.y > 1) return;
  refuse(run, key, "lacks \"oar\" without effect where mesh.axes.x = 1 and y = 1",
         "one with \"oar\", or mesh.axes.x = 2");
}

/// Nothing is summed over an axis of one rank.
void check_tiles(const Run& run) {
  if (!run.tensor.tiles.starts_with("on")) return;
  if (is_chain(run))
    refuse(run, "tensor.tiles", "cannot take effect " + uncut_blocks(run), "\"auto\"");
  if (run.mesh.axes.x > 1) return;
  refuse(run, "tensor.tiles", "cannot take effect with mesh.axes.x = 1",
         "\"auto\", or mesh.axes.x = 2");
}

/// Only ranks of x do the same between products, and only blocks of transformers are cut there.
void check_sequence_parallel(const Run& run) {
  if (!run.tensor.sequence_parallel) return;
  if (is_chain(run))
    refuse(run, "tensor.sequence_parallel", "cannot take effect " + uncut_blocks(run), "false");
  if (run.mesh.axes.x == 1)
    refuse(run, "tensor.sequence_parallel", "cannot take effect with mesh.axes.x = 1",
           "false, or mesh.axes.x = 2");
}

/// Every rank of the axis attends for the same number of whole key heads, in whole sequences.
void check_heads(const Run& run) {
  const int64_t ranks = run.mesh.axes.sequence;
  const int64_t heads = run.model.shape.kv_heads / run.mesh.axes.x;
  if (heads > 0 && heads % ranks != 0) {
    int64_t nearest = std::min(ranks, heads);
    while (heads % nearest != 0) --nearest;
    refuse(run, "sequence.engine",
           fmt::format("cannot give mesh.axes.sequence = {} ranks the same number of {} key heads "
                       "each",
                       ranks, heads),
           fmt::format("\"ring\", or mesh.axes.sequence = {}", nearest));
  }
}

/// Every rank of a group that exchanges heads attends for the same number of whole key heads, and
/// every rank of the axis is in such a group.
void check_head_ranks(const Run& run) {
  const std::optional<int64_t> given = given_head_ranks(run.sequence);
  const int64_t size = given.value_or(1), ranks = run.mesh.axes.sequence;
  if (size == 0) return;
  const auto refuse_size = [&](const std::string& reason, const std::string& nearest) {
    refuse_key(run, "sequence.head_ranks",
               fmt::format("sequence.head_ranks = {} {}; the nearest valid value is {}",
                           run.sequence.head_ranks, reason, nearest));
  };
  const bool of_plans = plans_documents(run) && run.sequence.engine != "packed";
  if (run.sequence.engine != "heads_ring" && !of_plans)
    refuse_size(
        fmt::format("cannot take effect with sequence.engine = \"{}\"", run.sequence.engine),
        "0, or sequence.engine = \"heads_ring\"");
  const int64_t heads = run.model.shape.kv_heads / run.mesh.axes.x;
  const int64_t common = std::gcd(ranks, heads);
  if (heads == 0 || common % size == 0) return;
  refuse_size(ranks % size != 0 ? fmt::format("does not divide mesh.axes.sequence = {}", ranks)
                                : fmt::format("does not divide the {} key heads of a rank", heads),
              std::to_string(nearest_divisor(common, size)));
}

/// Every rank of the axis has two chunks of a sequence, all of one length.
void check_sequence(const Run& run) {
  static const Run defaults;
  const int64_t ranks = run.mesh.axes.sequence, context = run.model.shape.context;
  const Key& engine = *find_key("sequence.engine");
  if (ranks == 1 && !same_value(engine, run, defaults))
    refuse(run, engine.name, "cannot take effect with mesh.axes.sequence = 1",
           value_text(engine, defaults) + (is_chain(run) ? "" : ", or mesh.axes.sequence = 2"));
  check_head_ranks(run);
  if (ranks == 1) return;
  if (run.sequence.engine == "heads") check_heads(run);
  if (context % (2 * ranks) == 0 || run.train.global_batch_tokens > 0) return;
  refuse_key(run, "model.shape.context",
             fmt::format("model.shape.context = {} cannot be cut into 2 equal chunks for each of "
                         "mesh.axes.sequence = {} ranks; the nearest valid values are {}",
                         context, ranks, nearest_multiples(context, 2 * ranks)));
}

}  // namespace

void check_mesh_model(const Run& run, int64_t ranks) {
  check_sequence(run);
  check_overlap(run);
  check_tiles(run);
  check_sequence_parallel(run);
  if (is_chain(run)) return check_mesh_chain(run, ranks);
  const MeshAxes& axes = run.mesh.axes;
  for (const auto& [name, size] :
       {NamedSize{"x", axes.x}, NamedSize{"y", axes.y}, NamedSize{"sequence", axes.sequence}}) {
    const std::string key = fmt::format("mesh.axes.{}", name);
    if (size > 1 && run.runtime.device == "cuda")
      refuse_key(run, key,
                 fmt::format("{} = {} cannot take effect with runtime.device = \"cuda\", whose "
                             "blocks run as one piece; the nearest valid value is 1, or "
                             "runtime.device = \"cpu\"",
                             key, size));
  }
  with_place(run, [&] {
    check_grid(run.model.shape, block_style(run.model.family), run.model.shape.vocabulary,
               grid_of(run, ranks));
  });
}

void check_mesh_levels(const Run& run, const Cluster& cluster) {
  with_place(run, [&] { positions_of(cluster, Mesh(run.mesh, cluster.ranks)); });
}

std::vector<int64_t> parse_cuts(const std::string& text) {
  std::vector<int64_t> cuts;
  if (text == "auto") return cuts;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (bool more = true; more;) {
    while (at != end && *at == ' ') ++at;
    int64_t number = 0;
    const auto [stop, code] = std::from_chars(at, end, number);
    if (code != std::errc() || (stop != end && *stop != ',')) {
      ErrorPlace place;
      place.key = "pipeline.cuts";
      throw UserError(
          fmt::format("pipeline.cuts = {} is neither auto nor numbers of transformer blocks as in "
                      "\"3,6,9\"; the nearest valid value is \"auto\"",
                      toml_string(text.substr(0, 100))),
          place);
    }
    cuts.push_back(number);
    more = stop != end;
    at = more ? stop + 1 : end;
  }
  return cuts;
}

void check_pipeline(const Run& run) {
  if (run.mesh.axes.stage == 1) return check_stages(run);
  check_activation_codec(run);
  check_chunks(run);
  check_cuts(run);
  check_split_backward(run);
  check_post_validation(run);
}

void check_micro_batches(const Run& run, int64_t share, int64_t accumulation) {
  const int64_t stages = run.mesh.axes.stage;
  if (run.pipeline.order != "interleaved" || accumulation % stages == 0) return;
  const std::string why = fmt::format(
      "pipeline.order = \"interleaved\" takes micro-batches {} at a time, but a step has {}",
      stages, accumulation);
  if (share % stages != 0)
    refuse_key(run, "pipeline.order",
               fmt::format("{}; the nearest valid value is \"1f1b\", or a share of "
                           "train.global_batch_size per data-parallel rank of {}",
                           why, nearest_multiples(share, stages)));
  const int64_t micro = nearest_divisor(share / stages, share / accumulation);
  refuse_key(run, "train.micro_batch_size",
             fmt::format("{}; the nearest valid value is {}", why, micro));
}

void check_row_split(const Run& run, int64_t rows, int64_t micro_batch, int64_t share) {
  const int64_t x = run.mesh.axes.x;
  if (!run.tensor.sequence_parallel || rows % x == 0) return;
  std::string nearest = "false";
  int64_t larger = micro_batch + 1;
  while (larger <= share && (share % larger != 0 || rows / micro_batch * larger % x != 0)) ++larger;
  if (larger <= share) nearest += fmt::format(", or train.micro_batch_size = {}", larger);
  refuse(run, "tensor.sequence_parallel",
         fmt::format("cannot give mesh.axes.x = {} ranks the same number of the {} rows of a "
                     "micro-batch",
                     x, rows),
         nearest);
}

}  // namespace strait
