#include "strait/config/document_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "strait/config/check_chain.h"
#include "strait/config/head_ranks.h"
#include "strait/config/keys.h"
#include "strait/sequence/balanced.h"

namespace strait {
namespace {

int64_t divided_up(int64_t value, int64_t by) { return (value + by - 1) / by; }
int64_t rounded_up(int64_t value, int64_t step) { return divided_up(value, step) * step; }

void refuse_tokens(const Run& run, const std::string& reason, const std::string& nearest) {
  refuse_key(run, "train.global_batch_tokens",
             fmt::format("train.global_batch_tokens = {} {}; the nearest valid value is {}",
                         run.train.global_batch_tokens, reason, nearest));
}

/// Ranks that share a row have two chunks of it each, all of one length.
int64_t tokens_step(const Run& run) {
  return run.mesh.axes.sequence == 1 ? 1 : 2 * run.mesh.axes.sequence;
}

/// What one data-parallel rank's rows come in multiples of.
int64_t rows_step(const Run& run) {
  const int64_t stages = run.mesh.axes.stage;
  const int64_t micro = std::max<int64_t>(1, run.train.micro_batch_size);
  return micro * (stages > 1 && run.pipeline.order == "interleaved" ? stages : 1);
}

int64_t least_rows(const Run& run) {
  const int64_t stages = run.mesh.axes.stage;
  return rounded_up(stages == 1 ? 1 : 2 * stages, rows_step(run));
}

/// Rows of `tokens` tokens that hold any batch.
int64_t rows_for(const Run& run, int64_t tokens) {
  const int64_t all = run.train.global_batch_tokens, context = run.model.shape.context;
  const int64_t by_first_fit = 2 * all / tokens + 1;
  if (tokens == context) return by_first_fit;
  return std::min(by_first_fit, std::max<int64_t>(1, divided_up(all - context, tokens - context)));
}

/// One row of each data-parallel rank, with room on every rank for what a plan may give it.
DocumentRows planned_rows(const Run& run, int64_t data_ranks) {
  const int64_t context = run.model.shape.context, ranks = run.mesh.axes.sequence;
  const int64_t all = run.train.global_batch_tokens + (data_ranks - 1) * context;
  const int64_t documents = std::max(context, divided_up(all, data_ranks));
  const int64_t even = divided_up(documents, ranks);
  const std::string& engine = run.sequence.engine;
  const bool by_whole = engine == "packed" || engine == "hybrid";
  const int64_t enough = sequence::enough_capacity(documents, ranks);
  const int64_t spare =
      std::max(by_whole ? context : std::max<int64_t>(32, even / 8), enough - even);
  const int64_t capacity = run.sequence.capacity_tokens;
  if (capacity > 0 && capacity < even)
    refuse_key(
        run, "sequence.capacity_tokens",
        fmt::format("sequence.capacity_tokens = {} on {} ranks of mesh.axes.sequence hold {} "
                    "tokens, and they may get {}; the nearest valid value is {} if documents "
                    "divide evenly; {} holds any "
                    "batch",
                    capacity, ranks, capacity * ranks, documents, even, enough));
  return {1, (capacity > 0 ? capacity : even + spare) * ranks, documents};
}

/// Of plans: one program runs a step's whole batch.
void check_plans(const Run& run) {
  const auto refuse = [&](const std::string& with, const std::string& instead) {
    refuse_key(run, "sequence.engine",
               fmt::format("sequence.engine = \"{}\" cannot take effect {}; the nearest valid "
                           "value is \"auto\", or {}",
                           run.sequence.engine, with, instead));
  };
  if (run.train.global_batch_tokens == 0)
    refuse("without train.global_batch_tokens", "train.global_batch_tokens = 8192");
  if (run.mesh.axes.stage > 1)
    refuse(fmt::format("with mesh.axes.stage = {}", run.mesh.axes.stage), "mesh.axes.stage = 1");
  if (run.train.micro_batch_size > 1)
    refuse(fmt::format("with train.micro_batch_size = {}", run.train.micro_batch_size),
           "train.micro_batch_size = 1");
}

}  // namespace

bool plans_documents(const Run& run) {
  const std::string& engine = run.sequence.engine;
  return run.mesh.axes.sequence > 1 &&
         (engine == "packed" || engine == "even" || engine == "hybrid" || engine == "zeppelin");
}

void check_document_rows(const Run& run) {
  static const Run defaults;
  const int64_t tokens = run.train.global_batch_tokens;
  if (plans_documents(run)) check_plans(run);
  if (run.sequence.plan && !plans_documents(run))
    refuse_key(run, "sequence.plan",
               fmt::format("sequence.plan = true cannot take effect with sequence.engine = \"{}\" "
                           "and mesh.axes.sequence = {}, where batches have no plan; the nearest "
                           "valid value is false, or sequence.engine = \"zeppelin\"",
                           run.sequence.engine, run.mesh.axes.sequence));
  if (run.tensor.sequence_parallel && run.sequence.remap == "residual")
    refuse_key(run, "sequence.remap",
               fmt::format("sequence.remap = \"residual\" cannot take effect with "
                           "tensor.sequence_parallel = true, where each of the mesh.axes.x = {} "
                           "ranks has a part of the residual stream's rows; the nearest valid "
                           "value is \"qkv\", or tensor.sequence_parallel = false",
                           run.mesh.axes.x));
  if (!plans_documents(run)) {
    const auto refuse_unplanned = [&](const char* key, const std::string& value) {
      refuse_key(
          run, key,
          fmt::format("{} = \"{}\" cannot take effect with sequence.engine = \"{}\" and "
                      "mesh.axes.sequence = {}, where batches have no plan; the nearest valid "
                      "value is \"auto\", or sequence.engine = \"zeppelin\"",
                      key, value, run.sequence.engine, run.mesh.axes.sequence));
    };
    if (run.sequence.remap == "qkv" || run.sequence.remap == "residual")
      refuse_unplanned("sequence.remap", run.sequence.remap);
    if (run.sequence.routing != "auto" && run.sequence.routing != "off")
      refuse_unplanned("sequence.routing", run.sequence.routing);
  }
  if (given_head_ranks(run.sequence).value_or(1) > 1 && run.sequence.routing != "auto" &&
      run.sequence.routing != "off")
    refuse_key(
        run, "sequence.routing",
        fmt::format("sequence.routing = \"{}\" cannot take effect with sequence.head_ranks = "
                    "{}, whose rings leave a node over the link of every rank already; the "
                    "nearest valid value is \"auto\", or sequence.head_ranks = 0",
                    run.sequence.routing, run.sequence.head_ranks));
  if (!run.sequence.fill && run.sequence.engine != "zeppelin" && run.sequence.engine != "hybrid")
    refuse_key(run, "sequence.fill",
               fmt::format("sequence.fill = false cannot take effect with sequence.engine = "
                           "\"{}\", where no rank has rings and documents of its own; the nearest "
                           "valid value is true, or sequence.engine = \"zeppelin\"",
                           run.sequence.engine));
  if (tokens == 0) {
    if (run.sequence.capacity_tokens > 0)
      refuse_key(run, "sequence.capacity_tokens",
                 fmt::format("sequence.capacity_tokens = {} cannot take effect without "
                             "train.global_batch_tokens; the nearest valid value is 0",
                             run.sequence.capacity_tokens));
    return;
  }
  if (!same_value(*find_key("train.global_batch_size"), run, defaults))
    refuse_key(run, "train.global_batch_size",
               fmt::format("train.global_batch_size = {} cannot take effect with "
                           "train.global_batch_tokens = {}; leave one of them out",
                           run.train.global_batch_size, tokens));
  const int64_t context = run.model.shape.context;
  if (tokens < context)
    refuse_tokens(
        run,
        fmt::format("is less than model.shape.context = {}, which a document may have", context),
        std::to_string(context));
  if (is_chain(run))
    refuse_tokens(run,
                  fmt::format("cannot take effect with model.family = \"{}\", which takes "
                              "sequences of one length",
                              run.model.family),
                  "0");
  if (run.model.shape.dropout > 0)
    refuse_tokens(run,
                  fmt::format("cannot take effect with model.shape.dropout = {}, which is drawn "
                              "for a place in a sequence, and documents have none",
                              run.model.shape.dropout),
                  "0, or model.shape.dropout = 0");
  if (run.sync.policy != "every-step")
    refuse_tokens(run,
                  fmt::format("cannot take effect with sync.policy = \"{}\", whose replicas would "
                              "weigh tokens differently",
                              run.sync.policy),
                  "0, or sync.policy = \"every-step\"");
}

DocumentRows document_rows(const Run& run, int64_t data_ranks) {
  const int64_t all = run.train.global_batch_tokens, context = run.model.shape.context;
  const int64_t capacity = run.sequence.capacity_tokens, ranks = run.mesh.axes.sequence;
  const int64_t step = tokens_step(run);
  if (plans_documents(run)) return planned_rows(run, data_ranks);
  if (capacity == 0) {
    const int64_t rows = least_rows(run), count = rows * data_ranks;
    const int64_t tokens = divided_up(all + (count - 1) * context, count);
    const int64_t length = rounded_up(std::max(tokens, context), step);
    return {rows, length, length};
  }
  const int64_t tokens = capacity * ranks / step * step;
  if (tokens < context) {
    const int64_t nearest = rounded_up(context, step) / ranks;
    refuse_key(run, "sequence.capacity_tokens",
               fmt::format("sequence.capacity_tokens = {} on {} rank{} of mesh.axes.sequence hold "
                           "{} tokens, and a document may have model.shape.context = {}; the "
                           "nearest valid value is {}",
                           capacity, ranks, ranks == 1 ? "" : "s", tokens, context, nearest));
  }
  const int64_t rows = divided_up(rows_for(run, tokens), data_ranks);
  return {rounded_up(std::max(rows, least_rows(run)), rows_step(run)), tokens, tokens};
}

}  // namespace strait
