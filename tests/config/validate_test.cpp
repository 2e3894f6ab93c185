// Every value that works is accepted, every other is refused with file, line, key and the nearest
// choice.
#include "strait/config/validate.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/config/keys.h"
#include "strait/config/parse.h"
#include "strait/config/print.h"
#include "strait/shape/shape.h"
#include "strait/topology/cluster.h"
#include "tests/paths.h"

namespace strait {
namespace {

using testing::HasSubstr;
using RunFile = Run;  // inside a test the plain name is GoogleTest's

void expect_valid(const std::string& text, int64_t ranks = 2) {
  EXPECT_NO_THROW(validate_run(parse_run(text, "run.toml"), ranks)) << text;
}

/// The error of validating `text`, in which `key` is written on line 1 unless line is given.
void expect_refused(const std::string& text, const std::string& key, const std::string& message,
                    int64_t ranks = 2, std::optional<int64_t> line = 1) {
  try {
    validate_run(parse_run(text, "run.toml"), ranks);
    ADD_FAILURE() << "accepted: " << text;
  } catch (const UserError& error) {
    EXPECT_EQ(error.place().key, key) << text << error.what();
    EXPECT_EQ(error.place().file, "run.toml") << text;
    EXPECT_EQ(error.place().line, line) << text << error.what();
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
}

TEST(Validate, DefaultsAreAcceptedWrittenOrNot) {
  for (const int64_t ranks : {1, 2, 3, 4, 6, 12}) {
    expect_valid("", ranks);
    const RunFile defaults;
    for (const Key& key : run_keys()) {
      const RunFile run = parse_run(key.name + " = " + value_text(key, defaults), "run.toml");
      EXPECT_NO_THROW(validate_run(run, ranks)) << key.name;
    }
  }
}

TEST(Validate, ReservedKeysAcceptOnlyTheDefault) {
  std::vector<std::pair<const char*, const char*>> cases = {
      {"simulate.jitter", "\"normal:0.1\""},
      {"simulate.stragglers", "[2.0]"},
      {"simulate.failures_per_device_hour", "0.1"},
      {"tune.budget_seconds", "1"},
      {"tune.trial_steps", "1"},
      {"tune.candidates", "1"},
      {"mesh.order", "[\"data\", \"x\", \"y\", \"z\", \"sequence\", \"stage\"]"},
      {"sync.outer.on_lost_replica", "\"continue\""},
  };
  for (const char* text :
       {"data.completion.prompt_field", "data.completion.completion_field", "train.start_from",
        "residence.state.weights", "residence.state.gradients", "residence.state.optimizer",
        "residence.state.activations", "residence.codec", "tiers.capacity.disk_path",
        "zeroth_order.step.restore", "projection.matrix.schedule"})
    cases.emplace_back(text, "\"host\"");
  for (const char* number : {"residence.share_above",
                             "tiers.capacity.device_gb",
                             "tiers.capacity.host_gb",
                             "tiers.capacity.disk_gb",
                             "tiers.throttle.up_gb_per_second",
                             "tiers.throttle.down_gb_per_second",
                             "tiers.throttle.read_gb_per_second",
                             "tiers.throttle.write_gb_per_second",
                             "zeroth_order.step.epsilon",
                             "zeroth_order.step.directions",
                             "zeroth_order.sign_ranks",
                             "zeroth_order.write_back_every",
                             "projection.matrix.size",
                             "projection.matrix.nonzeros",
                             "projection.refresh.check_every_steps",
                             "projection.refresh.bias",
                             "projection.refresh.samples",
                             "projection.refresh.iterations",
                             "projection.refresh.learning_rate",
                             "adapter.lora.rank",
                             "adapter.lora.alpha"})
    cases.emplace_back(number, "2");
  cases.emplace_back("residence.delayed_update", "true");
  cases.emplace_back("zeroth_order.step.exact", "false");
  cases.emplace_back("adapter.lora.targets", "[\"up\"]");
  // These take effect as long as their passes are there.
  for (const char* axis : {"mesh.axes.x", "mesh.axes.y", "mesh.axes.z", "mesh.axes.stage"})
    if (find_key(axis)->rule.only_default) cases.emplace_back(axis, "2");
  std::set<std::string> tested;
  for (const auto& [key, value] : cases) {
    tested.insert(key);
    expect_refused(std::string(key) + " = " + value, key,
                   "cannot take effect in this version; the valid value is ");
  }
  // These belong to strategies that can be taken out.
  const std::set<std::string> strategies = {"mesh.axes.x", "mesh.axes.y", "mesh.axes.z",
                                            "mesh.axes.stage"};
  for (const Key& key : run_keys())
    if (!strategies.contains(key.name)) {
      EXPECT_EQ(key.rule.only_default, tested.contains(key.name)) << key.name;
    }
}

TEST(Validate, ProductsTakeEffectOnlyOnTheirType) {
  const std::string narrow = "train.precision = \"bf16\"\n",
                    wide = "runtime.products = \"tiles\"\n";
  for (const char* products : {"auto", "widened", "paired", "tiles", "onednn"})
    expect_valid(narrow + "runtime.products = " + toml_string(products));
  expect_valid("runtime.products = \"auto\"");
  for (const char* products : {"widened", "split"})
    expect_valid("runtime.products = " + toml_string(products));
  expect_refused(wide, "runtime.products", "does not multiply train.precision = \"fp32\"");
  expect_refused("runtime.products = \"split\"\n" + narrow, "runtime.products",
                 "does not multiply train.precision = \"bf16\"");
  expect_refused("runtime.products = \"widened\"\ntrain.precision = \"fp64\"", "runtime.products",
                 "does not multiply train.precision = \"fp64\"");
  expect_refused(wide + narrow + "runtime.device = \"cuda\"", "runtime.products",
                 "a device multiplies by its own library");
  expect_refused("runtime.products = \"onednn\"\nruntime.deterministic = true\n" + narrow,
                 "runtime.products", "the nearest valid value is \"auto\"");
  expect_valid(wide + narrow + "runtime.deterministic = true");
  expect_refused("runtime.products = \"tile\"", "runtime.products", "\"tiles\"");
}

TEST(Validate, ChoicesThatWorkAndThatDoNot) {
  const auto all_work = [](const std::string& key, const std::vector<std::string>& values) {
    for (const std::string& value : values) expect_valid(key + " = " + toml_string(value));
  };
  all_work("runtime.backend", {"auto", "threads", "mpi", "nccl"});
  all_work("runtime.device", {"auto", "cpu", "cuda"});
  all_work("train.precision", {"fp32", "fp64", "bf16"});
  all_work("train.recompute", {"none", "block", "every:1", "every:2", "every:12"});
  all_work("train.non_finite", {"stop", "skip"});
  all_work("optimizer.schedule", {"constant", "linear", "cosine", "wsd"});
  all_work("optimizer.kind", {"adamw", "sgd"});
  all_work("placement.preset", {"ddp", "zero1", "zero2", "zero3", "hsdp", "mics"});
  all_work("data.encoding", {"utf-8", "windows-1252", "latin-1"});
  all_work("data.tokenizer", {"byte", "char", "bpe:4096", "bpe:257", "bpe:1000000",
                              "my/tokenizer.json", "tokenizer.json"});
  all_work("checkpoint.resume", {"never", "runs/x/step-3"});
  all_work("cluster.preset", cluster_preset_names());
  all_work("model.preset", model_preset_names());
  const std::string later = "is not available in this version; the nearest valid value is ";
  expect_refused("runtime.device = \"cud\"", "runtime.device", "\"cuda\" (auto, cpu, cuda)");
  expect_refused("train.precision = \"fp16\"", "train.precision",
                 "runtime.device is \"auto\"; the nearest valid value is \"bf16\"");
  all_work("model.family",
           {"gpt2", "llama", "mistral", "qwen2", "qwen3", "olmo2", "gemma2", "gemma3", "unet"});
  all_work("placement.preset", {"zero++", "zero-topo"});
  all_work("placement.codecs.weights",
           {"bf16", "int8", "int4/512", "fp8e4m3", "int8/64+asymmetric"});
  expect_refused("placement.codecs.update = \"int7\"", "placement.codecs.update", "int");
  expect_refused("placement.preset = \"zero4\"", "placement.preset",
                 "is unknown; the nearest valid value is \"zero1\"");
  expect_refused("optimizer.schedule = \"cosin\"", "optimizer.schedule",
                 "nearest valid value is \"cosine\"");
  expect_refused("data.tokenizer = \"chars\"", "data.tokenizer", "nearest valid value is \"char\"");
  expect_refused("data.tokenizer = \"bpe:\"", "data.tokenizer",
                 "nearest valid value is \"bpe:257\"");
  expect_refused("data.tokenizer = \"bpe:256\"", "data.tokenizer",
                 "nearest valid value is \"bpe:257\"");
  for (const char* large : {"bpe:1000001", "bpe:99999999999", "bpe:99999999999999999999"})
    expect_refused(std::string("data.tokenizer = \"") + large + "\"", "data.tokenizer",
                   "comes a whole number <= 1000000; the nearest valid value is \"bpe:1000000\"");
  expect_refused("data.tokenizer = \"bpe:12\"", "data.tokenizer",
                 "nearest valid value is \"bpe:257\"");
  expect_refused("train.recompute = \"every:0\"", "train.recompute",
                 "nearest valid value is \"every:1\"");
  expect_refused("train.recompute = \"every:13\"", "train.recompute",
                 "cannot take effect with 12 blocks; the nearest valid value is \"every:12\"");
  expect_refused("train.recompute = \"every:2x\"", "train.recompute",
                 "nearest valid value is \"every:1\"");
  expect_refused("checkpoint.resume = \"always\"", "checkpoint.resume", "is unknown");
  expect_refused("cluster.preset = \"frontir\"", "cluster.preset", "\"frontier\"");
  expect_refused("plan.search = [\"mesh\", \"placment\"]", "plan.search", "\"placement\"");
  expect_refused("plan.search = [\"mesh\", \"mesh\"]", "plan.search", "twice");
  expect_refused("plan.search = []", "plan.search", "is empty");
  expect_valid("plan.search = [\"placement\"]");
}

TEST(Validate, Ranges) {
  expect_refused("train.steps = 0", "train.steps",
                 "train.steps = 0 is out of range (>= 1); the nearest valid value is 1");
  expect_refused("version = 2", "version", "nearest valid value is 1");
  expect_refused("data.validation_share = 1.0", "data.validation_share",
                 "([0, 1)); the nearest valid value is below 1");
  expect_refused("data.validation_share = -0.1", "data.validation_share",
                 "nearest valid value is 0");
  expect_refused("optimizer.betas = [0.9, 1.0]", "optimizer.betas", "below 1");
  expect_refused("optimizer.eps = 0.0", "optimizer.eps", "the nearest valid value is 1e-37");
  expect_refused("runtime.deadline_seconds = 0", "runtime.deadline_seconds", "above 0");
  expect_refused("plan.memory_share = 0.0", "plan.memory_share", "above 0");
  expect_refused("plan.memory_share = 1.5", "plan.memory_share", "nearest valid value is 1");
  expect_refused("model.shape.heads = 0", "model.shape.heads", "nearest valid value is 1");
  expect_refused("model.shape.dropout = 1.0", "model.shape.dropout", "below 1");
  expect_refused("simulate.steps = 0", "simulate.steps", "nearest valid value is 1");
  expect_refused("train.clip_norm = -1.0", "train.clip_norm", "nearest valid value is 0");
  expect_valid("train.clip_norm = 0");
  expect_refused("optimizer.in_backward = true", "optimizer.in_backward",
                 "nearest valid value is false, or set train.clip_norm = 0");
  expect_refused("optimizer.in_backward = true\ntrain.clip_norm = 0\ntrain.non_finite = \"skip\"",
                 "optimizer.in_backward", "or set train.non_finite = \"stop\"");
  expect_valid("optimizer.in_backward = true\ntrain.clip_norm = 0");
  expect_valid("plan.memory_share = 1.0");
  expect_valid("simulate.steps = 5");
}

TEST(Validate, AShareOfPeakRatesIsForThoseOfADataSheet) {
  const std::string frontier = "cluster.preset = \"frontier\"\ncluster.compute_share = ";
  expect_valid(frontier + "0.4");
  expect_valid("cluster.compute_share = 1.0");
  expect_refused(frontier + "0.0", "cluster.compute_share", "above 0", 2, 2);
  expect_refused(frontier + "1.5", "cluster.compute_share", "nearest valid value is 1", 2, 2);
  expect_refused("cluster.compute_share = 0.4", "cluster.compute_share",
                 "other than localhost; the nearest valid value is 1");
  expect_refused(
      "cluster.compute_share = 0.4\ncluster.levels = [{ name = \"world\", size = 0, "
      "gb_per_second = 1.0 }]",
      "cluster.compute_share", "other than localhost");
}

TEST(Validate, MicroStepsThatNobodyCouldFollowAreRefusedWithTheNearest) {
  expect_refused("train.global_batch_size = 1000000000\ntrain.micro_batch_size = 1",
                 "train.micro_batch_size", "the nearest valid value is 1600", 2, 2);
  expect_refused("train.global_batch_size = 999999937\ntrain.micro_batch_size = 1",
                 "train.micro_batch_size", "the nearest valid value is 999999937", 1, 2);
}

TEST(Validate, LongWarmUpsAndIntervalsAreLegal) {
  expect_valid(
      "train.steps = 5\noptimizer.warmup_steps = 100000\noptimizer.decay_steps = 50000\n"
      "evaluation.every_steps = 99999\ncheckpoint.every_steps = 99999\noutput.log_every_steps = "
      "99999\n"
      "output.timeline_steps = 99999\nevaluation.batches = 99999\ncheckpoint.keep = 99999");
  expect_refused("checkpoint.keep = -1", "checkpoint.keep", "nearest valid value is 0");
}

TEST(Validate, KeysOfGemmaThatDoNotFitTogether) {
  expect_valid("model.preset = \"gemma-3-270m\"");
  expect_valid("model.preset = \"gemma-3-270m\"\nmodel.shape.window = 0");  // nor a pattern
  expect_valid("model.preset = \"gemma-3-270m\"\nmodel.family = \"mistral\"");
  expect_valid("model.preset = \"gemma-3-4b\"\nmodel.family = \"gpt2\"");
  expect_refused("model.shape.window_pattern = 6\nmodel.family = \"mistral\"",
                 "model.shape.window_pattern", "model.family = \"gemma3\"");
  expect_refused("model.shape.window_pattern = 6\nmodel.family = \"gemma3\"",
                 "model.shape.window_pattern", "model.shape.window = 512");
  expect_refused("model.shape.window_pattern = 1\nmodel.preset = \"gemma-3-1b\"",
                 "model.shape.window_pattern", "nearest valid value is 2");
  expect_refused("model.shape.query_scalar = 64\nmodel.family = \"qwen3\"",
                 "model.shape.query_scalar", "nearest valid value is 0");
  expect_refused("model.rope.local_theta = 100\nmodel.family = \"llama\"", "model.rope.local_theta",
                 "nearest valid value is 10000");
  expect_refused("model.rope.local_theta = 100\nmodel.family = \"gemma3\"",
                 "model.rope.local_theta", "leaves no block with a window");
  expect_refused("model.shape.dropout = 0.1\nmodel.preset = \"gemma-3-1b\"", "model.shape.dropout",
                 "nearest valid value is 0");
}

TEST(Validate, SoftCaps) {
  expect_valid("model.preset = \"gemma-2-2b\"");
  expect_valid("model.preset = \"gemma-2-2b\"\nmodel.shape.score_cap = 0");
  expect_valid("model.preset = \"gemma-2-2b\"\nmodel.family = \"gemma3\"");  // caps go
  expect_valid("model.preset = \"gemma-2-2b\"\nmodel.family = \"gpt2\"");
  expect_valid("model.preset = \"gemma-3-1b\"\nmodel.shape.logit_cap = 30");
  expect_refused("model.shape.score_cap = 50\nmodel.preset = \"gemma-3-1b\"",
                 "model.shape.score_cap", "nearest valid value is 0, or model.family = \"gemma2\"");
  expect_refused("model.shape.logit_cap = 30", "model.shape.logit_cap",
                 "family gpt2 does not cap logits");
  expect_refused("model.shape.logit_cap = -1\nmodel.preset = \"gemma-2-2b\"",
                 "model.shape.logit_cap", "nearest valid value is 0");
  expect_refused("model.rope.local_theta = 5\nmodel.preset = \"gemma-2-2b\"",
                 "model.rope.local_theta", "turn by theta");
}

TEST(Validate, Combinations) {
  expect_refused("model.shape.heads = 5", "model.shape.heads",
                 "nearest valid heads is 4, or a width of 770");
  expect_refused("model.shape.width = 100", "model.shape.width",
                 "12 heads do not divide the width 100");
  expect_refused("model.shape.kv_heads = 3", "model.shape.kv_heads", "nearest valid value is 12");
  const std::string llama = "\nmodel.preset = \"llama-10m\"";  // 6 heads of 64, 2 key/value heads
  expect_valid("model.shape.kv_heads = 3\nmodel.rope.theta = 5e5\nmodel.rope.factor = 8.0" + llama);
  expect_refused("model.shape.kv_heads = 4" + llama, "model.shape.kv_heads",
                 "nearest valid value is 3");
  expect_refused("model.shape.width = 90" + llama, "model.shape.width",
                 "nearest valid width is 96");
  expect_refused("model.rope.low_frequency_factor = 4.0" + llama, "model.rope.low_frequency_factor",
                 "nearest valid value is 5");
  expect_refused("model.rope.high_frequency_factor = 1.0" + llama,
                 "model.rope.high_frequency_factor", "nearest valid value is 2");
  expect_refused("model.rope.theta = 5e5", "model.rope.theta",
                 "model.family = \"gpt2\" has no RoPE; the nearest valid value is 10000");
  expect_valid("model.preset = \"llama-3.2-1b\"\nmodel.family = \"gpt2\"");
  expect_valid("model.preset = \"llama-124m\"\nmodel.shape.heads = 6");    // kv_heads follow
  expect_valid("model.preset = \"mistral-7b\"\nmodel.family = \"gpt2\"");  // no window is left
  expect_valid("model.family = \"qwen3\"\nmodel.shape.head_width = 6");    // nor are biases
  expect_refused("model.shape.head_width = 7\nmodel.family = \"qwen3\"", "model.shape.head_width",
                 "nearest valid value is 8");
  expect_refused("model.shape.head_width = 6", "model.shape.head_width",
                 "nearest valid value is 0");
  expect_refused("model.shape.window = 6\nmodel.family = \"llama\"", "model.shape.window",
                 "model.family = \"mistral\"");
  expect_refused("model.shape.bias = true\nmodel.family = \"mistral\"", "model.shape.bias",
                 "nearest valid value is false");
  expect_refused("model.shape.dropout = 0.1\nmodel.family = \"olmo2\"", "model.shape.dropout",
                 "nearest valid value is 0");
  expect_refused("model.family = \"lama\"", "model.family", "nearest valid value is \"llama\"");
  expect_refused("optimizer.eps = 1e-6\noptimizer.kind = \"sgd\"", "optimizer.eps",
                 "\"sgd\" has no eps");
  expect_refused("optimizer.betas = [0.9, 0.5]\noptimizer.kind = \"sgd\"", "optimizer.betas",
                 "[0.9, 0.99]");
  expect_valid("optimizer.betas = [0.0, 0.99]\noptimizer.kind = \"sgd\"");
  expect_refused("optimizer.minimum_learning_rate = 1e-5\noptimizer.schedule = \"constant\"",
                 "optimizer.minimum_learning_rate", "never decays");
  expect_refused("optimizer.decay_steps = 10\noptimizer.schedule = \"constant\"",
                 "optimizer.decay_steps", "never decays");
  expect_refused("optimizer.minimum_learning_rate = 1e-2", "optimizer.minimum_learning_rate",
                 "nearest valid value is 0.001");
  expect_valid("optimizer.learning_rate = 1e-5");  // the default minimum follows
  expect_valid("optimizer.learning_rate = 1e-5\noptimizer.schedule = \"constant\"");
  expect_refused("evaluation.batches = 3\ndata.validation_share = 0.0", "evaluation.batches",
                 "nothing to evaluate");
  expect_valid("data.validation_share = 0.0");
  expect_refused("checkpoint.resume = \"auto\"", "checkpoint.resume",
                 "nearest valid value is \"never\"");
  expect_valid("checkpoint.resume = \"auto\"\noutput.run_dir = \"runs/a\"");
  expect_refused("checkpoint.resume = \"rr\"", "checkpoint.resume", "or ./rr as a path");
  expect_refused("name = \"a/b\"", "name", "nearest valid name is \"a-b\"");
  expect_refused("name = \"\"", "name", "\"my-run\"");
  expect_refused("name = \"..\"", "name", "\"my-run\"");
}

TEST(Validate, ClusterMeshAndSpans) {
  expect_refused("cluster.file = \"c.toml\"\ncluster.preset = \"frontier\"", "cluster.file",
                 "exactly one");
  expect_valid("cluster.levels = []\ncluster.file = \"\"\ncluster.preset = \"frontier\"");
  expect_valid(
      "cluster.preset = \"localhost\"\ncluster.levels = [{ name = \"pair\", size = 2, "
      "gb_per_second = 1.0 }]");
  expect_refused("cluster.file = \"does/not/exist.toml\"", "cluster.file", "cannot open");
  expect_refused("cluster.preset = \"frontier\"\ntrain.global_batch_size = 9", "cluster.preset",
                 "2 or 4", 3);
  expect_refused(
      "cluster.levels = [{ name = \"a\", size = 2, gb_per_second = 1.0 }, { name = \"b\", size = "
      "2, gb_per_second = 1.0 }]",
      "cluster.levels", "hold 4 ranks and the run has 6", 6);
  expect_valid("mesh.axes.data = 2");
  expect_refused("mesh.axes.data = 3", "mesh.axes.data",
                 "nearest valid value is 2 (or 0, the rest)");
  expect_valid("placement.spans.weights = \"none\"");
  expect_valid("placement.spans.weights = 2");
  expect_valid("cluster.preset = \"frontier\"\nplacement.spans.weights = \"pair\"");
  expect_refused("placement.spans.weights = \"nod\"\ncluster.preset = \"frontier\"",
                 "placement.spans.weights", "nearest valid value is \"node\"");
  expect_refused("placement.spans.gradients = \"node\"", "placement.spans.gradients",
                 "(none, world)");
  expect_refused("placement.spans.optimizer = 0", "placement.spans.optimizer",
                 "number of ranks >= 1");
  expect_refused("placement.spans.optimizer = \"2x\"", "placement.spans.optimizer",
                 "number of ranks >= 1");
  EXPECT_THROW(validate_run(parse_run("", ""), 0), UserError);
}

TEST(Batch, GridEqualsPlainArithmetic) {
  for (const int64_t ranks : {1, 2, 3, 4, 8})
    for (int64_t global = 1; global <= 24; ++global)
      for (int64_t micro = 0; micro <= 12; ++micro) {
        RunFile run;
        run.train.global_batch_size = global;
        run.train.micro_batch_size = micro;
        const int64_t used = micro == 0 ? global / ranks : micro;
        const bool valid = used > 0 && used * ranks * (global / (used * ranks)) == global &&
                           global >= used * ranks;
        if (!valid) {
          EXPECT_THROW(resolve_batch(run, ranks, 2), UserError)
              << global << " " << micro << " " << ranks;
          continue;
        }
        const Resolved resolved = resolve_batch(run, ranks, 2);
        EXPECT_EQ(resolved.micro_batch_size * resolved.accumulation * resolved.data_ranks, global);
        EXPECT_EQ(resolved.data_ranks, ranks);
        EXPECT_EQ(resolved.micro_batch_size, used);
      }
}

TEST(Batch, StagesGetTheFewestMicroBatchesThatFillThem) {
  const auto count = [](int64_t global, int64_t stages, const char* order) {
    RunFile run;
    run.train.global_batch_size = global;
    run.mesh.axes.stage = stages;
    run.pipeline.order = order;
    return resolve_batch(run, stages, 2).accumulation;
  };
  EXPECT_EQ(count(24, 1, "1f1b"), 1);
  EXPECT_EQ(count(24, 3, "1f1b"), 6);
  EXPECT_EQ(count(20, 3, "1f1b"), 10);
  EXPECT_EQ(count(24, 4, "interleaved"), 8);
  EXPECT_EQ(count(60, 4, "interleaved"), 12);
  EXPECT_EQ(count(7, 4, "1f1b"), 7);  // as many as there are
}

TEST(Batch, ErrorsNameTheNearest) {
  expect_refused("train.global_batch_size = 13", "train.global_batch_size",
                 "nearest valid value is 12 or 14");
  expect_refused("", "train.global_batch_size", "nearest valid value is 8 or 16", 8, std::nullopt);
  expect_refused("train.micro_batch_size = 5", "train.micro_batch_size",
                 "nearest valid value is 6, or a global batch of 10 or 20");
  expect_refused("train.micro_batch_size = 1000000000\ntrain.global_batch_size = 1000000000",
                 "train.micro_batch_size", "500000000");
}

TEST(Batch, ThreadsShareTheCores) {
  RunFile run;
  EXPECT_EQ(resolve_batch(run, 2, 8).threads_per_rank, 4);
  EXPECT_EQ(resolve_batch(run, 4, 2).threads_per_rank, 1);
  run.runtime.threads_per_rank = 3;
  EXPECT_EQ(resolve_batch(run, 4, 2).threads_per_rank, 3);
  EXPECT_EQ(resolve_batch(run, 4, 2).decay_steps, 2000);
  run.optimizer.decay_steps = 50;
  EXPECT_EQ(resolve_batch(run, 4, 2).decay_steps, 50);
  EXPECT_GE(resolve_batch(run, 1).threads_per_rank, 1);
}

TEST(Vocabulary, IsKnownFromTheTokenizerWhereItSays) {
  DataOptions data;
  const std::pair<const char*, std::optional<int64_t>> cases[] = {
      {"byte", 256},
      {"bpe:4096", 4096},
      {"char", std::nullopt},
      {"a/tokenizer.json", std::nullopt},
      {"bpe:x", std::nullopt}};
  for (const auto& [tokenizer, size] : cases) {
    data.tokenizer = tokenizer;
    EXPECT_EQ(known_vocabulary(data), size) << tokenizer;
  }
}

TEST(Data, IsRequiredToTrainOnly) {
  const RunFile run = parse_run("", "run.toml");
  EXPECT_NO_THROW(validate_run(run, 1));
  try {
    require_data(run);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.place().key, "data.path");
    EXPECT_EQ(error.place().file, "run.toml");
  }
  EXPECT_NO_THROW(require_data(parse_run("data.path = \"x\"", "run.toml")));
}

TEST(Documents, TheReferenceIsGenerated) {
  const std::string path = test::in_source("docs/run-file.md"),
                    fresh = test::in_build("run-file.md");
  const std::string expected = run_file_reference();
  write_file_atomically(fresh, expected);
  EXPECT_TRUE(read_file(path) == expected)
      << "docs/run-file.md is not up to date; copy " << fresh << " over it";
}

TEST(Documents, ExamplesAreValid) {
  for (const char* name :
       {"shakespeare_char.toml", "minimal.toml", "llama_tiny.toml", "gemma_tiny.toml"})
    for (const int64_t ranks : {1, 2, 3, 4}) {
      const RunFile run = load_run(test::in_source("examples/") + name, {"data.path=x.txt"});
      EXPECT_NO_THROW(validate_run(run, ranks)) << name;
      EXPECT_NO_THROW(require_data(run));
    }
  const std::vector<std::pair<const char*, int64_t>> meshes = {
      {"ornl_22b", 16}, {"ornl_175b", 128}, {"ornl_1t", 1024}, {"six_axes", 8}};
  for (const auto& [name, ranks] : meshes)
    EXPECT_NO_THROW(
        validate_run(load_run(test::in_source("examples/") + std::string(name) + ".toml"), ranks))
        << name;
  const RunFile run = load_run(test::in_source("examples/shakespeare_char.toml"));
  EXPECT_EQ(run.model.shape.layers, 4);
  EXPECT_EQ(run.model.shape.heads, 4);
  EXPECT_EQ(run.model.shape.width, 128);
  EXPECT_EQ(run.model.shape.context, 64);
  EXPECT_FALSE(run.model.shape.bias);
  const RunFile llama = load_run(test::in_source("examples/llama_tiny.toml"));
  EXPECT_EQ(llama.model.family, "llama");
  EXPECT_EQ(llama.model.shape.kv_heads, 2);
  EXPECT_FALSE(llama.model.shape.bias);
  const RunFile gemma = load_run(test::in_source("examples/gemma_tiny.toml"));
  EXPECT_EQ(gemma.model.family, "gemma3");
  EXPECT_EQ(gemma.model.shape.window_pattern, 3);
  EXPECT_EQ(gemma.model.shape.rope.theta, 1e6);
}

TEST(Validate, StretchingThatCannotTakeEffectIsRefused) {
  const std::string llama = "model.family = \"llama\"\n", gemma = "model.preset = \"gemma-3-4b\"\n";
  const auto refused = [](const std::string& text, const std::string& key,
                          const std::string& message) {
    expect_refused(key + "\n" + text, key.substr(0, key.find(' ')), message);
  };
  for (const char* key :
       {"model.rope.original_context = 100", "model.rope.original_context = 1",
        "model.rope.low_frequency_factor = 2", "model.rope.high_frequency_factor = 9"}) {
    refused(llama, key, "model.rope.factor = 1 stretches nothing; the nearest valid value is");
    expect_valid(llama + "model.rope.factor = 2\n" + key);
  }
  for (const char* key :
       {"model.rope.low_frequency_factor = 0.01", "model.rope.high_frequency_factor = 9"}) {
    const std::string alike = "model.rope.factor = 4\nmodel.rope.original_context = 1\n";
    refused(llama + alike, key, "model.rope.original_context = 1 stretches all wave lengths alike");
    refused(gemma, key, "stretches all wave lengths alike");
  }
  expect_valid(llama + "model.rope.original_context = 8192\nmodel.rope.low_frequency_factor = 1");
  // As a preset fills it, also in a resolved file.
  expect_valid(gemma + "model.rope.factor = 1");
  expect_valid(gemma + "model.rope.factor = 1\nmodel.rope.original_context = 1");
}

TEST(Validate, APatternOfWindowsLongerThanTheModelIsRefusedUnlessAPresetHasIt) {
  const std::string key = "model.shape.window_pattern";
  const auto gemma = [&](int pattern, int layers) {
    return fmt::format(
        "{} = {}\nmodel.family = \"gemma3\"\nmodel.shape.window = 8\nmodel.shape.layers = {}", key,
        pattern, layers);
  };
  expect_refused(gemma(9, 3), key,
                 "cannot take effect with 3 blocks; the nearest valid value is 3");
  expect_refused(gemma(2, 1), key, "nearest valid value is 0");
  expect_valid(gemma(4, 4));
  expect_valid(gemma(6, 4));
  const std::string few = "model.preset = \"gemma-3-270m\"\nmodel.shape.layers = 3\n";
  expect_valid(few);
  expect_valid(few + "model.shape.window_pattern = 6\nmodel.family = \"gemma2\"");
  expect_refused(key + " = 5\n" + few, key, "nearest valid value is 3");
}

std::vector<std::string> problem_keys(const std::string& text, int64_t ranks = 2) {
  Problems problems;
  const RunFile run = parse_run(text, "run.toml", {"data.wrong=1", "train.steps=many"}, problems);
  validate_run(run, ranks, problems);
  std::vector<std::string> keys;
  for (const UserError& problem : problems.found())
    keys.push_back(problem.place().key.value_or(""));
  return keys;
}

TEST(Validate, AllProblemsOfAFileAreFound) {
  EXPECT_THAT(problem_keys("nmae = \"x\"\n[train]\nsteps = \"two\"\nclip_norm = -1\nrecompute = "
                           "\"sometimes\"\n[optimizer]\nkind = \"sgd\"\neps = 1e-3\nbetas = [0.9, "
                           "0.5]\nschedule = \"constant\"\ndecay_steps = 7\n[mesh.axes]\ndata = 3\n"
                           "[placement.spans]\nweights = \"wrold\"\ngradients = \"nods\"\n"),
              testing::UnorderedElementsAre(
                  "nmae", "train.steps", "data.wrong", "train.steps", "train.clip_norm",
                  "train.recompute", "optimizer.eps", "optimizer.betas", "optimizer.decay_steps",
                  "mesh.axes.data", "placement.spans.weights", "placement.spans.gradients"));
}

TEST(Validate, NoCheckBuildsOnAKeyWithAProblem) {
  // No head divides by zero, no batch by a size below one.
  EXPECT_THAT(problem_keys(
                  "[model]\nshape = { heads = 0, kv_heads = 1 }\n[train]\nglobal_batch_size = 0\n"),
              testing::UnorderedElementsAre("data.wrong", "train.steps", "model.shape.heads",
                                            "train.global_batch_size"));
}

TEST(Validate, AFileThatIsNoTomlIsOneProblem) { EXPECT_EQ(problem_keys("[train\n").size(), 3u); }

}  // namespace
}  // namespace strait
