// The table itself: one row per key of run.toml.
#include "strait/config/key_field.h"
#include "strait/config/keys.h"
#include "strait/config/reserved_keys.h"
#include "strait/shape/modules.h"
#include "strait/shape/shape.h"
#include "strait/shape/unet.h"
#include "strait/tokenizer/bpe_model.h"
#include "strait/topology/cluster.h"

namespace strait {
namespace {

// The most that keeps products of counts inside 64 bits.
constexpr double kMostCount = 1e9;
constexpr double kMostSteps = 1e15;

Rule any() { return {}; }

Rule only_default() {
  Rule rule;
  rule.only_default = true;
  return rule;
}

Rule between(double least, double most) {
  Rule rule;
  rule.least = least;
  rule.most = most;
  return rule;
}

Rule at_least(double least) { return between(least, std::numeric_limits<double>::infinity()); }

Rule share() {  // [0, 1)
  Rule rule = between(0, 1);
  rule.below_most = true;
  return rule;
}

Rule part() {  // (0, 1]
  Rule rule = between(0, 1);
  rule.above_least = true;
  return rule;
}

Rule positive() {
  Rule rule = at_least(0);
  rule.above_least = true;
  return rule;
}

Rule seconds() {  // 31 years: clocks count nanoseconds in 64 bits
  Rule rule = between(0, 1e9);
  rule.above_least = true;
  return rule;
}

Rule one_of(std::vector<std::string> choices, std::vector<std::string> later = {}) {
  Rule rule;
  rule.choices = std::move(choices);
  rule.later = std::move(later);
  return rule;
}

Rule or_none(Rule rule) {
  rule.or_none = true;
  return rule;
}

Rule with_form(Rule rule, const char* prefix, int64_t least, int64_t most = 1'000'000'000) {
  rule.forms.push_back({prefix, least, most});
  return rule;
}

Rule or_path(Rule rule) {
  rule.or_path = true;
  return rule;
}

Rule or_number(Rule rule, int64_t least) {
  rule.or_whole_number = true;
  return with_form(std::move(rule), "", least);
}

Rule span() {  // checked against the cluster by validate_run
  Rule rule;
  rule.or_whole_number = true;
  return rule;
}

Rule codec_text() {
  Rule rule;
  rule.codec = true;
  return rule;
}

std::vector<std::string> families() {
  std::vector<std::string> names = family_names();
  names.emplace_back(kUnetFamily);
  names.emplace_back(kModulesFamily);
  return names;
}

using Rows = std::vector<Key>;

Rows general_keys() {
  Rule version = between(1, 1);
  return {
      {"version", kField<&Run::version>, version, "Version of this format."},
      {"name", kField<&Run::name>, any(), "Name of the run; letters, digits, '-', '_' and '.'."},
      {"seed", kField<&Run::seed>, any(),
       "Seed of initial values, data order, dropout and sampling."},
      {"runtime.backend", kField<&Run::runtime, &RuntimeOptions::backend>,
       one_of({"auto", "threads", "mpi", "nccl"}),
       "How ranks run; auto chooses mpi under mpirun or srun (nccl where device is cuda), threads "
       "otherwise."},
      {"runtime.device", kField<&Run::runtime, &RuntimeOptions::device>,
       one_of({"auto", "cpu", "cuda"}),
       "Where tensors live; auto chooses cpu. cuda: docs/gpu.md; ranks of the threads backend "
       "share the first device."},
      {"runtime.threads_per_rank", kField<&Run::runtime, &RuntimeOptions::threads_per_rank>,
       between(0, 4096),
       "Compute threads of a rank; 0 = an equal part of the cores that the ranks may use."},
      {"runtime.bind", kField<&Run::runtime, &RuntimeOptions::bind>,
       one_of({"none", "auto", "core"}),
       "Cores that a rank keeps to: core gives each an equal part in whole cores, of as few NUMA "
       "domains and caches as there are; auto does where it can help and nobody has bound the "
       "ranks. "
       "docs/clusters.md."},
      {"runtime.deadline_seconds", kField<&Run::runtime, &RuntimeOptions::deadline_seconds>,
       seconds(), "Longest wait for another rank before the run ends with exit code 4."},
      {"runtime.deterministic", kField<&Run::runtime, &RuntimeOptions::deterministic>, any(),
       "Refuse every source of run-to-run differences; products go by the kind of processor, not "
       "by "
       "measurements."},
      {"runtime.products", kField<&Run::runtime, &RuntimeOptions::products>,
       one_of(kernel::product_names()),
       "What multiplies matrices of bf16 and fp32; auto measures at start. docs/guide.md."},
  };
}

Rows model_keys() {
  constexpr auto model = &Run::model;
  constexpr auto shape = &ModelOptions::shape;
  constexpr auto unet = &ModelOptions::unet;
  const char* filled = "model.preset";
  return {
      {"model.preset", kField<model, &ModelOptions::preset>, any(),
       "Named model that fills the keys of this section that are not written."},
      {"model.family", kField<model, &ModelOptions::family>, one_of(families()),
       "Architecture; docs/models.md compares them.", filled},
      {"model.path", kField<model, &ModelOptions::path>, any(),
       "modules: folder with a chain of TorchScript blocks and their sizes; docs/modules.md."},
      {"model.unet.channels", kField<model, unet, &UnetOptions::channels>, between(2, 65536),
       "unet: channels of each level; every level halves the image.", filled},
      {"model.unet.image", kField<model, unet, &UnetOptions::image>, between(1, 4096),
       "unet: height and width of an image in pixels.", filled},
      {"model.unet.attention_from", kField<model, unet, &UnetOptions::attention_from>,
       between(0, 4096),
       "unet: largest height at which residual blocks have attention; 0 = none but the one in the "
       "middle.",
       filled},
      {"model.unet.residual_blocks", kField<model, unet, &UnetOptions::residual_blocks>,
       between(1, 64), "unet: of each level on the way down; one more on the way up.", filled},
      {"model.unet.colors", kField<model, unet, &UnetOptions::colors>, between(1, 1024),
       "unet: numbers of a pixel.", filled},
      {"model.unet.diffusion_steps", kField<model, unet, &UnetOptions::diffusion_steps>,
       between(1, 1e6), "unet: steps in which an image becomes noise.", filled},
      {"model.shape.layers", kField<model, shape, &ShapeOptions::layers>, between(1, 1e5),
       "Transformer blocks.", filled},
      {"model.shape.heads", kField<model, shape, &ShapeOptions::heads>, between(1, 1e5),
       "Attention heads; they divide the width where head_width is 0.", filled},
      {"model.shape.kv_heads", kField<model, shape, &ShapeOptions::kv_heads>, between(1, 1e5),
       "Key/value heads; they divide the heads; gpt2: equal to heads. Follow heads when not "
       "written, unless the "
       "preset has fewer.",
       filled},
      {"model.shape.width", kField<model, shape, &ShapeOptions::width>, between(1, 1e6),
       "Size of the residual stream.", filled},
      {"model.shape.ffn_width", kField<model, shape, &ShapeOptions::ffn_width>, between(1, 1e7),
       "Inner size of the feed-forward part (gated families: of gate and up each); it does not "
       "follow a "
       "written "
       "width.",
       filled},
      {"model.shape.context", kField<model, shape, &ShapeOptions::context>, between(1, 1e7),
       "Longest sequence in tokens.", filled},
      {"model.shape.bias", kField<model, shape, &ShapeOptions::bias>, any(),
       "Biases: gpt2 of linear layers and LayerNorm, llama of linear layers, qwen2 of queries, "
       "keys "
       "and values; the other families have none.",
       filled},
      {"model.shape.dropout", kField<model, shape, &ShapeOptions::dropout>, share(),
       "Dropout probability.", filled},
      {"model.shape.tied_head", kField<model, shape, &ShapeOptions::tied_head>, any(),
       "The head shares the token embedding.", filled},
      {"model.shape.norm_eps", kField<model, shape, &ShapeOptions::norm_eps>, positive(),
       "Added to the variance by LayerNorm, to the mean square by RMSNorm.", filled},
      {"model.shape.vocabulary", kField<model, shape, &ShapeOptions::vocabulary>, between(0, 1e9),
       "Rows of embedding and head, at least one per token; 0 = as many as the tokenizer has "
       "tokens. "
       "Rows behind the last token are trained and never drawn.",
       filled},
      {"model.shape.head_width", kField<model, shape, &ShapeOptions::head_width>, between(0, 1e5),
       "Elements of a head, even; 0 = width / heads. All families but gpt2.", filled},
      {"model.shape.window", kField<model, shape, &ShapeOptions::window>, between(0, 1e9),
       "mistral, gemma2, gemma3: a query attends the latest so many tokens, itself included; 0 = "
       "all "
       "before "
       "it.",
       filled},
      {"model.shape.window_pattern", kField<model, shape, &ShapeOptions::window_pattern>,
       between(0, 1e5),
       "gemma2, gemma3: every so many-th block attends all tokens before it, the others those in "
       "the "
       "window; "
       "0 = none does.",
       filled},
      {"model.shape.query_scalar", kField<model, shape, &ShapeOptions::query_scalar>, at_least(0),
       "gemma2, gemma3: attention scores are divided by its square root; 0 = by that of a head's "
       "elements.",
       filled},
      {"model.shape.score_cap", kField<model, shape, &ShapeOptions::score_cap>, at_least(0),
       "gemma2: soft cap of attention scores, score_cap tanh(score / score_cap); 0 = none.",
       filled},
      {"model.shape.logit_cap", kField<model, shape, &ShapeOptions::logit_cap>, at_least(0),
       "gemma2, gemma3: soft cap of the logits, likewise; 0 = none.", filled},
  };
}

Rows rope_keys() {
  constexpr auto model = &Run::model;
  constexpr auto shape = &ModelOptions::shape;
  constexpr auto rope = &ShapeOptions::rope;
  const char* filled = "model.preset";
  return {
      {"model.rope.theta", kField<model, shape, rope, &RopeOptions::theta>, positive(),
       "Base of the frequencies of rotary position embedding.", filled},
      {"model.rope.factor", kField<model, shape, rope, &RopeOptions::factor>, at_least(1),
       "Stretches wave lengths as Llama 3.1 does, or all alike; 1 = off.", filled},
      {"model.rope.low_frequency_factor",
       kField<model, shape, rope, &RopeOptions::low_frequency_factor>, positive(),
       "Wave lengths above original_context / this are stretched in full. With a factor above 1 "
       "and "
       "an original_context above 1.",
       filled},
      {"model.rope.high_frequency_factor",
       kField<model, shape, rope, &RopeOptions::high_frequency_factor>, positive(),
       "Wave lengths below original_context / this stay; blended between. Likewise.", filled},
      {"model.rope.original_context", kField<model, shape, rope, &RopeOptions::original_context>,
       between(1, 1e9),
       "Tokens that the frequencies were trained for; 1 stretches all wave lengths alike (linear "
       "scaling). With a factor above 1.",
       filled},
      {"model.rope.local_theta", kField<model, shape, rope, &RopeOptions::local_theta>, positive(),
       "gemma3: theta of the blocks with a window, which are not stretched.", filled},
  };
}

Rows data_keys() {
  return {
      {"data.path", kField<&Run::data, &DataOptions::path>, any(),
       "Text, JSON-lines (both also as gzip), llm.c shards or Megatron pairs: a file, or a folder "
       "of one form; required to train. Or synthetic:lengths/NAME, documents as long as a "
       "distribution or the histogram in a file (histogram/file=PATH) has them, and behind it "
       "/scale=S, /longest=N, /tokens=N."},
      {"data.encoding", kField<&Run::data, &DataOptions::encoding>,
       one_of({"utf-8", "windows-1252", "latin-1"}),
       "Encoding of the text; a byte that is not valid utf-8 is an error with file and offset."},
      {"data.text_field", kField<&Run::data, &DataOptions::text_field>, any(),
       "JSON-lines: the member of each line that is its text."},
      {"data.tokenizer", kField<&Run::data, &DataOptions::tokenizer>,
       or_path(with_form(with_form(one_of({"byte", "char"}), "bpe:", kSmallestBpeVocabulary,
                                   kLargestBpeVocabulary),
                         "ids:", 1)),
       "bpe:N trains a byte-level BPE of N tokens on the text; a path names a tokenizer.json; of "
       "data that are "
       "tokens, the default is the tokenizer.json beside them, and ids:N tells no more than the "
       "vocabulary."},
      {"data.validation_share", kField<&Run::data, &DataOptions::validation_share>, share(),
       "The last part of the text, kept for evaluation."},
      {"data.document_separator", kField<&Run::data, &DataOptions::document_separator>, any(),
       "\"\" = one stream; otherwise documents are packed and attention stays inside each."},
      {"data.completion.prompt_field",
       kField<&Run::data, &DataOptions::completion, &CompletionOptions::prompt_field>,
       only_default(), "JSON-lines: the member that is the prompt."},
      {"data.completion.completion_field",
       kField<&Run::data, &DataOptions::completion, &CompletionOptions::completion_field>,
       only_default(),
       "JSON-lines: the member that is the completion, which alone counts in the loss."},
  };
}

Rows train_keys() {
  constexpr auto train = &Run::train;
  return {
      {"train.steps", kField<train, &TrainOptions::steps>, between(1, kMostSteps),
       "Optimizer steps."},
      {"train.global_batch_size", kField<train, &TrainOptions::global_batch_size>,
       between(1, kMostCount), "Sequences per optimizer step over all ranks."},
      {"train.global_batch_tokens", kField<train, &TrainOptions::global_batch_tokens>,
       between(0, kMostCount),
       "Above 0, instead of train.global_batch_size: a step takes whole documents up to so many "
       "tokens, "
       "in rows whose length follows; micro_batch_size counts rows."},
      {"train.micro_batch_size", kField<train, &TrainOptions::micro_batch_size>,
       between(0, kMostCount),
       "Sequences per rank and micro-step; 0 = global / data ranks, with stages the most that make "
       "at "
       "least 2 * stage micro-batches. Accumulation = global / (micro * data)."},
      {"train.precision", kField<train, &TrainOptions::precision>,
       one_of({"fp32", "fp64", "bf16", "fp16"}),
       "Element type of computing and sending; bf16 and fp16 keep weights, sums and moments in "
       "fp32. "
       "fp16: on a device, with a dynamic loss scale."},
      {"train.clip_norm", kField<train, &TrainOptions::clip_norm>, at_least(0),
       "Largest global gradient norm; 0 = off."},
      {"train.non_finite", kField<train, &TrainOptions::non_finite>, one_of({"stop", "skip"}),
       "What all ranks do when any gradient is not finite."},
      {"train.recompute", kField<train, &TrainOptions::recompute>,
       with_form(one_of({"none", "block"}), "every:", 1),
       "Blocks whose activations are computed again in backward; every:K = each K-th block. unet, "
       "modules: block, also where none is written."},
      {"train.start_from", kField<train, &TrainOptions::start_from>, only_default(),
       "Checkpoint or Hugging Face folder whose weights the run starts from; until it works, "
       "strait convert makes a checkpoint of such a folder."},
  };
}

Rows optimizer_keys() {
  constexpr auto optimizer = &Run::optimizer;
  return {
      {"optimizer.kind", kField<optimizer, &OptimizerOptions::kind>, one_of({"adamw", "sgd"}),
       "Update rule."},
      {"optimizer.betas", kField<optimizer, &OptimizerOptions::betas>, share(),
       "Decay of the two moments; sgd: the first is the momentum."},
      {"optimizer.eps", kField<optimizer, &OptimizerOptions::eps>, at_least(1e-37),
       "Added to the root of the second moment; fp32 makes zero of less."},
      {"optimizer.weight_decay", kField<optimizer, &OptimizerOptions::weight_decay>, at_least(0),
       "Decoupled; matrices and embeddings only."},
      {"optimizer.schedule", kField<optimizer, &OptimizerOptions::schedule>,
       one_of({"constant", "linear", "cosine", "wsd"}), "Learning rate after the warm-up."},
      {"optimizer.learning_rate", kField<optimizer, &OptimizerOptions::learning_rate>, at_least(0),
       "Peak learning rate."},
      {"optimizer.minimum_learning_rate",
       kField<optimizer, &OptimizerOptions::minimum_learning_rate>, at_least(0),
       "Learning rate from step decay_steps + 1 on, so not yet in a run that ends with the decay. "
       "At "
       "most the peak; when it is not written it follows a lower peak."},
      {"optimizer.warmup_steps", kField<optimizer, &OptimizerOptions::warmup_steps>,
       between(0, kMostSteps),
       "Steps of linear warm-up; may be longer than the run and the decay."},
      {"optimizer.decay_steps", kField<optimizer, &OptimizerOptions::decay_steps>,
       between(0, kMostSteps), "Step at which the decay ends; 0 = train.steps."},
      {"optimizer.in_backward", kField<optimizer, &OptimizerOptions::in_backward>, any(),
       "Update each unit as soon as its gradient is final, in the backward pass, and start then "
       "what follows; with one micro-step the gradient ends there. Without clipping; where a "
       "gradient is not finite, weights have changed when the run stops."},
  };
}

Rows run_control_keys() {
  return {
      {"evaluation.every_steps", kField<&Run::evaluation, &EvaluationOptions::every_steps>,
       between(0, kMostSteps), "0 = never in between; after the last step always."},
      {"evaluation.batches", kField<&Run::evaluation, &EvaluationOptions::batches>,
       between(0, kMostSteps),
       "0 = the whole validation part once, in order, in windows that do not overlap."},
      {"checkpoint.every_steps", kField<&Run::checkpoint, &CheckpointOptions::every_steps>,
       between(0, kMostSteps), "0 = only after the last step and on a signal."},
      {"checkpoint.asynchronous", kField<&Run::checkpoint, &CheckpointOptions::asynchronous>, any(),
       "Write from a snapshot while training goes on."},
      {"checkpoint.keep", kField<&Run::checkpoint, &CheckpointOptions::keep>,
       between(0, kMostSteps),
       "Newest checkpoints kept; older ones are removed once a newer one is complete. 0 = all."},
      {"checkpoint.keep_best", kField<&Run::checkpoint, &CheckpointOptions::keep_best>, any(),
       "Save whenever the validation loss is the least so far, and keep that checkpoint: "
       "RUN/best."},
      {"checkpoint.resume", kField<&Run::checkpoint, &CheckpointOptions::resume>,
       or_path(one_of({"never", "auto"})),
       "auto = go on if output.run_dir holds a complete checkpoint; a path names a checkpoint."},
      {"output.run_dir", kField<&Run::output, &OutputOptions::run_dir>, any(),
       "\"\" = a new runs/<name>-NNN; a folder that holds a run is an error unless resuming."},
      {"output.log_every_steps", kField<&Run::output, &OutputOptions::log_every_steps>,
       between(1, kMostSteps), "Steps between two lines."},
      {"output.timeline_steps", kField<&Run::output, &OutputOptions::timeline_steps>,
       between(0, kMostSteps), "Steps recorded as Chrome trace."},
      {"output.overlap_steps", kField<&Run::output, &OutputOptions::overlap_steps>,
       between(0, 1000),
       "Steps timed after training, three times over, to tell how much communication is hidden."},
  };
}

Rows cluster_keys() {
  return {
      {"cluster.preset", kField<&Run::cluster, &ClusterOptions::preset>,
       one_of(cluster_preset_names()),
       "Named cluster. Exactly one of preset, file and levels is written."},
      {"cluster.file", kField<&Run::cluster, &ClusterOptions::file>, any(),
       "Cluster file from strait probe."},
      {"cluster.levels", kField<&Run::cluster, &ClusterOptions::levels>, any(),
       "Levels, innermost first: { name, size, gb_per_second, latency_microseconds, links, "
       "processor_share }; size is the fan-out, 0 = the rest; processor_share: of a rank's "
       "processor "
       "time, while the level is busy."},
      {"cluster.compute_share", kField<&Run::cluster, &ClusterOptions::compute_share>, part(),
       "Of a preset's peak rates, which data sheets give, what the blocks of a model reach; MFU "
       "stays a share of the peak. Published runs: docs/validation.md."},
  };
}

Rows mesh_keys() {
  constexpr auto axes = &MeshOptions::axes;
  return {
      {"mesh.order", kField<&Run::mesh, &MeshOptions::order>, only_default(),
       "Axes, innermost first."},
      {"mesh.axes.x", kField<&Run::mesh, axes, &MeshAxes::x>, between(1, kMostCount),
       "Ranks that share every block (tensor parallelism): heads, MLP channels, vocabulary."},
      {"mesh.axes.y", kField<&Run::mesh, axes, &MeshAxes::y>, between(1, kMostCount),
       "Second axis of the tensor grid: columns of the residual stream."},
      {"mesh.axes.z", kField<&Run::mesh, axes, &MeshAxes::z>, between(1, kMostCount),
       "Depth of the tensor grid: ranks of other batches that share what placement.preset hsdp or "
       "mics shards."},
      {"mesh.axes.sequence", kField<&Run::mesh, axes, &MeshAxes::sequence>, between(1, kMostCount),
       "Ranks that share every sequence: each has a chunk from its beginning and the mirror image "
       "of that from its end."},
      {"mesh.axes.data", kField<&Run::mesh, axes, &MeshAxes::data>, between(0, kMostCount),
       "Data-parallel ranks; 0 = the rest."},
      {"mesh.axes.stage", kField<&Run::mesh, axes, &MeshAxes::stage>, between(1, kMostCount),
       "Pipeline stages, each with blocks of its own, in pipeline.order."},
  };
}

Rows placement_keys() {
  constexpr auto placement = &Run::placement;
  constexpr auto spans = &PlacementOptions::spans;
  constexpr auto codecs = &PlacementOptions::codecs;
  const char* filled = "placement.preset";
  return {
      {"placement.preset", kField<placement, &PlacementOptions::preset>,
       one_of({"ddp", "zero1", "zero2", "zero3", "hsdp", "mics", "zero++", "zero-topo"}),
       "Fills spans, codecs and reduce_every that are not written."},
      {"placement.reduce_every", kField<placement, &PlacementOptions::reduce_every>,
       one_of({"micro-step", "step"}), "How often gradients are reduced across groups.", filled},
      {"placement.prefetch_units", kField<placement, &PlacementOptions::prefetch_units>,
       between(0, kMostCount),
       "Units gathered ahead of their use; 0 where tensor.overlap lacks oag.", "tensor.overlap"},
      {"placement.spans.weights", kField<placement, spans, &PlacementSpans::weights>, span(),
       "Ranks that share one copy: none, a level's name, or a number of ranks of the data axis.",
       filled},
      {"placement.spans.secondary", kField<placement, spans, &PlacementSpans::secondary>, span(),
       "Span of a second copy of the weights, from which all gathers after the first of a step "
       "come.",
       filled},
      {"placement.spans.gradients", kField<placement, spans, &PlacementSpans::gradients>, span(),
       "Span of the gradients.", filled},
      {"placement.spans.optimizer", kField<placement, spans, &PlacementSpans::optimizer>, span(),
       "Span of master weights and moments.", filled},
      {"placement.codecs.weights", kField<placement, codecs, &PlacementCodecs::weights>,
       codec_text(), "Codec of gathered weights.", filled},
      {"placement.codecs.secondary", kField<placement, codecs, &PlacementCodecs::secondary>,
       codec_text(), "Codec of the secondary weights, at rest and gathered.", filled},
      {"placement.codecs.gradients", kField<placement, codecs, &PlacementCodecs::gradients>,
       codec_text(),
       "Codecs of reduced gradients, one for all hops or one per hop, innermost first.", filled},
      {"placement.codecs.update", kField<placement, codecs, &PlacementCodecs::update>, codec_text(),
       "Codec in which updated weights are sent to their shards and kept there.", filled},
  };
}

Rows sequence_keys() {
  constexpr auto sequence = &Run::sequence;
  return {
      {"sequence.plan", kField<sequence, &SequenceOptions::plan>, any(),
       "Print the plan of each batch, where sequence.engine makes one: documents by zone, tokens "
       "and pairs of ranks, bytes, attention predicted and measured. Of several rows, which are "
       "those of data-parallel ranks, the first one's."},
      {"sequence.engine", kField<sequence, &SequenceOptions::engine>,
       one_of({"auto", "gathered", "ring", "heads", "heads_ring", "hybrid", "zeppelin", "even",
               "packed"}),
       "How attention crosses ranks of mesh.axes.sequence: gathered brings the keys of all to "
       "each, ring passes those of one rank on while it computes, heads gives each some heads of "
       "all "
       "tokens, heads_ring exchanges heads among neighbours (sequence.head_ranks) and passes keys "
       "on from group to group; auto: ring where a chunk has 128 tokens or more, else gathered. Of "
       "batches of whole documents a plan says who has which: packed splits none, even all, hybrid "
       "by length, zeppelin what is cheapest."},
      {"sequence.head_ranks", kField<sequence, &SequenceOptions::head_ranks>,
       or_number(one_of({"auto"}), 0),
       "Neighbours among which sequence.engine = \"heads_ring\" exchanges heads; divides "
       "mesh.axes.sequence and the key heads of a rank of x. 1 is a ring, all ranks are heads. 0 "
       "and auto: the most of those that the outermost level of the cluster between ranks of the "
       "axis does not part. With even, hybrid and zeppelin, neighbours inside a node that exchange "
       "the heads of documents whose ring crosses nodes; divides the ranks of a node. 0: none; "
       "auto: for each batch as many as are cheapest."},
      {"sequence.routing", kField<sequence, &SequenceOptions::routing>,
       with_form(with_form(with_form(or_number(one_of({"auto", "off", "rotate"}), 1), "whole:", 1),
                           "rotate:", 2),
                 "both:", 4),
       "Over how many ranks of a node, each with a link of its own, transfers of rings that cross "
       "nodes go, where sequence.engine plans batches: N over proxies, in pieces if that is "
       "cheaper; whole:N: not in pieces; rotate:N: without proxies, in N groups of key heads that "
       "each leave a node over another rank; rotate: in as many as are cheapest; both:N: in "
       "groups, "
       "each over proxies of its own, altogether over N ranks at most; auto: whatever is cheapest, "
       "over at most the links that the cluster file gives a node."},
      {"sequence.remap", kField<sequence, &SequenceOptions::remap>,
       one_of({"auto", "none", "qkv", "residual"}),
       "Where sequence.engine plans batches, whether ranks have the same number of tokens beside "
       "attention: qkv moves queries, keys and values of some tokens to the ranks that attend "
       "them, and results back; residual the residual stream, so that the products before and "
       "behind attention stay as uneven as it is; none: nothing moves; auto: what is cheapest."},
      {"sequence.fill", kField<sequence, &SequenceOptions::fill>, any(),
       "A rank's own documents between the rounds of its rings (zeppelin, hybrid), while keys are "
       "on "
       "their way; else behind all of them."},
      {"sequence.capacity_tokens", kField<sequence, &SequenceOptions::capacity_tokens>,
       between(0, kMostCount),
       "Tokens of a rank per row of documents (train.global_batch_tokens), of which a step then "
       "has "
       "as many as it needs; 0 = as few rows as ranks and stages ask for."},
  };
}

Rows parallel_keys() {
  return {
      {"tensor.overlap", kField<&Run::tensor, &TensorOptions::overlap>,
       or_none(one_of({"oar", "ors", "oag"})),
       "What computing goes on beside: oar, sums of gradients of activations over x and y, of "
       "transformers alone; ors, reductions of gradients; oag, gathers of weights, "
       "placement.prefetch_units ahead."},
      {"tensor.sequence_parallel", kField<&Run::tensor, &TensorOptions::sequence_parallel>, any(),
       "Ranks of x split the rows of norms, residual stream and dropout, which else all of them do "
       "alike: reduce-scatters and all-gathers in place of sums, 1 / x of the activations kept "
       "between products."},
      {"tensor.tiles", kField<&Run::tensor, &TensorOptions::tiles>,
       with_form(one_of({"off", "auto", "on"}), "on:", 1),
       "Whether products are taken apart by rows, the sum over x of some beside the product of the "
       "next rows or, with tensor.sequence_parallel, their gather or scatter; auto: where that is "
       "predicted to be faster; on:N: into N chunks, of a shard there. Neither bits nor bytes "
       "change."},
      {"tensor.cached_gathers", kField<&Run::tensor, &TensorOptions::cached_gathers>,
       between(0, kMostCount),
       "First blocks, the embedding or the first of a chain left out, whose gathered weights stay "
       "from forward to backward: a gather less, for their memory."},
      {"pipeline.order", kField<&Run::pipeline, &PipelineOptions::order>,
       one_of({"gpipe", "1f1b", "interleaved", "zero-bubble-h1", "zero-bubble-h2"}),
       "Which task a stage does next; docs/mesh.md compares them. Zero-bubble orders make the "
       "gradients of weights later than those of activations."},
      {"pipeline.chunks_per_stage", kField<&Run::pipeline, &PipelineOptions::chunks_per_stage>,
       between(1, kMostCount),
       "Runs of blocks that a stage has; at least 2 with order = \"interleaved\", else 1."},
      {"pipeline.cuts", kField<&Run::pipeline, &PipelineOptions::cuts>, any(),
       "auto balances modelled times, embedding and head counted; \"3,6,9\": the transformer "
       "blocks, counted from 0, with which stages (with chunks: runs of blocks) begin, but for the "
       "first."},
      {"pipeline.activation_codec", kField<&Run::pipeline, &PipelineOptions::activation_codec>,
       codec_text(),
       "Codec of what passes between stages, activations and their gradients; a dense one without "
       "error feedback and drawn rounding."},
      {"pipeline.post_validation", kField<&Run::pipeline, &PipelineOptions::post_validation>, any(),
       "Update by what a rank knows itself, without waiting for the others; the next step "
       "validates "
       "that, and takes it back where gradients are clipped or not finite. With order = "
       "\"zero-bubble-h2\"."},
      {"compression.codec", kField<&Run::compression, &CompressionOptions::codec>, codec_text(),
       "Codec of the all-reduce of every step, layer by layer; with placement.preset = \"ddp\"."},
      {"compression.skip_below_elements",
       kField<&Run::compression, &CompressionOptions::skip_below_elements>, at_least(0),
       "Smaller parameters, and those of one dim, are sent as they are."},
      {"compression.adapt", kField<&Run::compression, &CompressionOptions::adapt>,
       one_of({"none", "lgreco"}),
       "lgreco: a setting per layer, the fewest bytes at no more error than the codec everywhere."},
      {"compression.adapt_every_steps",
       kField<&Run::compression, &CompressionOptions::adapt_every_steps>, at_least(1),
       "Steps between two choices."},
      {"lgreco.alpha", kField<&Run::lgreco, &LgrecoOptions::alpha>, positive(),
       "Error that a choice may have, as a multiple of that of the codec everywhere."},
      {"lgreco.start_step", kField<&Run::lgreco, &LgrecoOptions::start_step>, at_least(1),
       "Step after which settings are chosen first."},
      {"lgreco.gather_steps", kField<&Run::lgreco, &LgrecoOptions::gather_steps>, at_least(1),
       "Steps before a choice whose gradients are added up for it."},
  };
}

Rows sync_keys() {
  constexpr auto rounds = &SyncOptions::rounds;
  constexpr auto outer = &SyncOptions::outer;
  constexpr auto sync = &Run::sync;
  const char* filled = "sync.policy";
  return {
      {"sync.policy", kField<sync, &SyncOptions::policy>,
       one_of({"every-step", "post-local-sgd", "slowmo", "diloco", "streaming-diloco", "co2"}),
       "When replicas of the model agree; the other keys have this policy's defaults."},
      {"sync.replica", kField<sync, &SyncOptions::replica>, span(),
       "Span of one replica: inside it the placement acts, between replicas the policy."},
      {"sync.rounds.period_steps", kField<sync, rounds, &SyncRounds::period_steps>,
       between(1, kMostCount), "Steps from one border of a fragment to the next."},
      {"sync.rounds.delay_steps", kField<sync, rounds, &SyncRounds::delay_steps>,
       between(0, kMostCount), "Steps that hide a transfer before its result is taken up.", filled},
      {"sync.rounds.fragments", kField<sync, rounds, &SyncRounds::fragments>,
       between(1, kMostCount), "Parts of the model with borders of their own.", filled},
      {"sync.rounds.fragment_order", kField<sync, rounds, &SyncRounds::fragment_order>,
       one_of({"strided", "sequential"}),
       "Which layers make a fragment: every n-th, or neighbours."},
      {"sync.rounds.mixing", kField<sync, rounds, &SyncRounds::mixing>, between(0, 1),
       "Share of the local weights that stays when a result is taken up.", filled},
      {"sync.rounds.eager", kField<sync, rounds, &SyncRounds::eager>, any(),
       "The own part of a result that is a round late is replaced by the newest."},
      {"sync.outer.kind", kField<sync, outer, &SyncOuter::kind>, one_of({"sgd", "nesterov"}),
       "Outer optimizer.", filled},
      {"sync.outer.learning_rate", kField<sync, outer, &SyncOuter::learning_rate>, positive(),
       "Outer learning rate.", filled},
      {"sync.outer.momentum", kField<sync, outer, &SyncOuter::momentum>, share(), "Outer momentum.",
       filled},
      {"sync.outer.clip", kField<sync, outer, &SyncOuter::clip>, at_least(0),
       "Limit of every element of the outer momentum; 0 = off.", filled},
      {"sync.outer.penalty", kField<sync, outer, &SyncOuter::penalty>, any(),
       "What a result that is a round late is divided by: constant:NUMBER, lr-ratio:NUMBER or "
       "gap-aware:NUMBER.",
       filled},
      {"sync.outer.codec", kField<sync, outer, &SyncOuter::codec>, codec_text(),
       "Codec of what replicas send each other.", filled},
      {"sync.outer.on_lost_replica", kField<sync, outer, &SyncOuter::on_lost_replica>,
       only_default(), "What happens when a replica is lost."},
  };
}

Rows tool_keys() {
  return {
      {"simulate.steps", kField<&Run::simulate, &SimulateOptions::steps>, between(1, kMostCount),
       "Steps that `events` counts: without jitter all are alike, so one is replayed."},
      {"simulate.jitter", kField<&Run::simulate, &SimulateOptions::jitter>, only_default(),
       "Random spread of times."},
      {"simulate.stragglers", kField<&Run::simulate, &SimulateOptions::stragglers>, only_default(),
       "Slow ranks."},
      {"simulate.failures_per_device_hour",
       kField<&Run::simulate, &SimulateOptions::failures_per_device_hour>, only_default(),
       "Rate of failures."},
      {"plan.keep", kField<&Run::plan, &PlanOptions::keep>, between(1, kMostCount),
       "Candidates to show."},
      {"plan.memory_share", kField<&Run::plan, &PlanOptions::memory_share>, part(),
       "Part of a rank's memory that a plan may use."},
      {"plan.search", kField<&Run::plan, &PlanOptions::search>,
       one_of({"mesh", "placement", "codecs", "pipeline", "sync", "sequence", "micro_batch_size",
               "recompute"}),
       "What may vary; the rest stays as this file says. Without codecs no plan sends less than "
       "what a step computes with, but by codecs that this file names."},
      {"plan.utilization", kField<&Run::plan, &PlanOptions::utilization>, share(),
       "Share of time that ranks are to compute, by the choice of [sync]; 0 = that stays too."},
      {"tune.budget_seconds", kField<&Run::tune, &TuneOptions::budget_seconds>, only_default(),
       "Time to search."},
      {"tune.trial_steps", kField<&Run::tune, &TuneOptions::trial_steps>, only_default(),
       "Steps of a trial."},
      {"tune.candidates", kField<&Run::tune, &TuneOptions::candidates>, only_default(),
       "Plans to try."},
  };
}

}  // namespace

const std::vector<Key>& run_keys() {
  static const std::vector<Key> table = [] {
    Rows rows;
    for (Rows (*part)() :
         {general_keys, model_keys, rope_keys, data_keys, train_keys, optimizer_keys,
          run_control_keys, cluster_keys, mesh_keys, placement_keys, sequence_keys, parallel_keys,
          sync_keys, tool_keys, reserved_keys})
      for (Key& key : part()) rows.push_back(std::move(key));
    return rows;
  }();
  return table;
}

}  // namespace strait
