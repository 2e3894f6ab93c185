#include "strait/bench/bench_step.h"

#include <fmt/format.h>

#include <charconv>
#include <memory>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/kernel/product_choice.h"
#include "strait/measure/peer.h"
#include "strait/measure/rank_team.h"

namespace strait::measure {
namespace {

/// A linear layer's three products: y = x W^T, dx = dy W, dW = dy^T x.
void add_linear(std::vector<GemmShape>& list, int64_t rows, int64_t in, int64_t out,
                int64_t count) {
  list.push_back({.m = rows, .n = out, .k = in, .transpose_b = true, .count = count});
  list.push_back({.m = rows, .n = in, .k = out, .count = count});
  list.push_back({.m = out, .n = in, .k = rows, .transpose_a = true, .count = count});
}

/// The words between spaces.
std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  size_t begin = 0;
  while ((begin = line.find_first_not_of(' ', begin)) != std::string::npos) {
    const size_t end = std::min(line.find(' ', begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

double seconds_of(const std::string& line) {
  const std::vector<std::string> words = words_of(line);
  double seconds = 0.0;
  if (!words.empty()) {
    const char* end = words[0].data() + words[0].size();
    const auto [stop, error] = std::from_chars(words[0].data(), end, seconds);
    if (error == std::errc() && stop == end && seconds > 0.0) return seconds;
  }
  throw PeerLost("the peer answered \"" + line + "\" instead of its seconds");
}

std::vector<std::string> torch_arguments(const StepCase& step, const ModelShape& model,
                                         const TorchPeerOptions& options) {
  const ShapeOptions& shape = model.options;
  std::vector<std::string> arguments = {options.python, options.script, "--precision",
                                        step.precision};
  const auto add = [&](const char* flag, const auto& value) {
    arguments.push_back(flag);
    arguments.push_back(fmt::format("{}", value));
  };
  add("--layers", shape.layers);
  add("--heads", shape.heads);
  add("--width", shape.width);
  add("--vocabulary", model.vocabulary);
  add("--positions", shape.context);
  add("--batch", step.micro_batch_size);
  add("--context", step.context);
  add("--threads", step.threads);
  add("--clip-norm", options.clip_norm);
  if (options.compiled) arguments.push_back("--compile");
  if (model.family == "gpt2") {
    if (!shape.bias) arguments.push_back("--no-bias");
    return arguments;
  }
  add("--kv-heads", shape.kv_heads);
  add("--ffn-width", shape.ffn_width);
  add("--rope-theta", shape.rope.theta);
  add("--norm-epsilon", shape.norm_eps);
  if (shape.tied_head) arguments.push_back("--tied-head");
  return arguments;
}

/// Why the peer cannot play this model; "" when it can.
std::string outside_of_torch_peer(const ModelShape& model) {
  const ShapeOptions& shape = model.options;
  if (shape.dropout != 0.0) return "the peers have no dropout";
  if (shape.head_width != 0) return "the peers' heads have width / heads elements";
  if (model.family == "llama")
    return shape.rope.factor != 1 ? "the peer's rotation is not scaled" : "";
  if (model.family != "gpt2") return "the peers are gpt2 and llama, not " + model.family;
  if (shape.ffn_width != 4 * shape.width) return "the peer's ffn_width is 4 * width";
  if (shape.kv_heads != shape.heads) return "the peer's kv_heads equal heads";
  if (!shape.tied_head) return "the peer's head is tied";
  return "";
}

}  // namespace

std::vector<GemmShape> step_gemms(const ModelShape& model, int64_t sequences, int64_t tokens) {
  const ShapeOptions& shape = model.options;
  const int64_t rows = sequences * tokens, width = shape.width;
  const int64_t attention_width = shape.heads * shape.head_elements();
  const int64_t kv_width = shape.kv_heads * shape.head_elements();
  const int64_t up_width = model.style.gated ? 2 * shape.ffn_width : shape.ffn_width;
  std::vector<GemmShape> list;
  add_linear(list, rows, width, attention_width + 2 * kv_width, shape.layers);
  add_linear(list, rows, attention_width, width, shape.layers);
  add_linear(list, rows, width, up_width, shape.layers);
  add_linear(list, rows, shape.ffn_width, width, shape.layers);
  add_linear(list, rows, width, model.vocabulary, 1);
  return list;
}

BenchRow bench_step(const StepCase& step, const ModelShape& model, const StepSubject& subject,
                    const std::vector<Contender>& peers, const TimingOptions& options) {
  const Dtype dtype = step.precision == "fp64"   ? Dtype::kFloat64
                      : step.precision == "bf16" ? Dtype::kBfloat16
                                                 : Dtype::kFloat32;
  std::vector<GemmShape> shapes = step_gemms(model, step.micro_batch_size, step.context);
  std::vector<std::unique_ptr<Gemm>> gemms;
  for (const GemmShape& shape : shapes)
    gemms.push_back(std::make_unique<Gemm>(shape, dtype, step.products));
  BenchWork work;
  work.bench_case = Json::object({{"model", step.model},
                                  {"micro_batch_size", step.micro_batch_size},
                                  {"context", step.context},
                                  {"vocabulary", step.vocabulary},
                                  {"precision", step.precision},
                                  {"threads", step.threads}});
  if (step.products != kernel::NarrowProducts::kAutomatic)
    work.bench_case["products"] = kernel::product_name(step.products);
  work.verify = subject.verify;
  work.ours = {"strait", "", subject.step, ""};
  work.work = static_cast<double>(step.micro_batch_size * step.context);
  work.rate_unit = "tokens_per_second";
  work.bound = Contender{"own-gemms", "",
                         [&] {
                           const ThreadLimit limit(step.threads);
                           double total = 0.0;
                           for (size_t i = 0; i < gemms.size(); ++i) {
                             const double start = now_seconds();
                             gemms[i]->run();
                             total +=
                                 static_cast<double>(shapes[i].count) * (now_seconds() - start);
                           }
                           return total;
                         },
                         ""};
  work.peers = peers;
  return bench_row(work, options);
}

Contender torch_step_peer(const StepCase& step, const ModelShape& model,
                          const TorchPeerOptions& options) {
  Contender peer{step.precision == "bf16" ? "pytorch-autocast" : "pytorch-eager", "", nullptr,
                 outside_of_torch_peer(model)};
  if (options.compiled) peer.name += "-compiled";
  if (peer.missing.empty() && options.script.empty())
    peer.missing = "its script is neither installed nor in the folder of the sources";
  if (!peer.missing.empty()) return peer;
  try {
    const auto process = std::make_shared<PeerProcess>(torch_arguments(step, model, options));
    const double deadline = options.deadline_seconds;
    const std::string greeting = process->read_line(deadline);
    const std::vector<std::string> words = words_of(greeting);
    if (words.size() < 2 || words[0] != "ready") {
      peer.missing = "it said: " + greeting;
      return peer;
    }
    peer.version = words[1];
    peer.run = [process, deadline] {
      process->write_line("step");
      return seconds_of(process->read_line(deadline));
    };
  } catch (const Error& error) {
    peer.missing = error.what();
  }
  return peer;
}

}  // namespace strait::measure
