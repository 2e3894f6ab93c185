#include "strait/model/module_blocks.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/python/update_graph_executor_opt.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <string_view>

#include "strait/base/errors.h"
#include "strait/model/autograd_block.h"
#include "strait/tensor/scalar_type.h"

namespace strait::model {
namespace {

using torch::jit::Module;

/// Operations that no module may have: files, printing, and random numbers, which would differ when
/// the backward pass runs the forward again.
constexpr std::array<std::string_view, 3> kOutside = {"aten::from_file", "aten::save",
                                                      "prim::Print"};
constexpr std::array<std::string_view, 26> kRandom = {"dropout",
                                                      "dropout_",
                                                      "feature_dropout",
                                                      "feature_dropout_",
                                                      "alpha_dropout",
                                                      "native_dropout",
                                                      "alpha_dropout_",
                                                      "feature_alpha_dropout",
                                                      "bernoulli",
                                                      "bernoulli_",
                                                      "rand",
                                                      "rand_like",
                                                      "randn",
                                                      "randn_like",
                                                      "randint",
                                                      "randint_like",
                                                      "randperm",
                                                      "normal",
                                                      "normal_",
                                                      "uniform_",
                                                      "random_",
                                                      "multinomial",
                                                      "poisson",
                                                      "exponential_",
                                                      "rrelu_with_noise",
                                                      "rrelu"};

[[noreturn]] void refuse(const std::string& path, const std::string& message) {
  ErrorPlace place;
  place.file = path;
  throw UserError(fmt::format("{} {}", path, message), place);
}

/// Runs `body`; what LibTorch throws is told as a failure of the file.
template <class Body>
auto on_file(const std::string& path, const char* doing, const Body& body) {
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    refuse(path, fmt::format("{}: {}", doing, error.what_without_backtrace()));
  } catch (const std::exception& error) {
    refuse(path, fmt::format("{}: {}", doing, error.what()));
  }
}

/// Code that would run while the file is loaded, before anything of it can be looked at.
void check_code(const std::string& path) {
  caffe2::serialize::PyTorchStreamReader archive(path);
  for (const std::string& name : archive.getAllRecords()) {
    if (!name.starts_with("code/") || !name.ends_with(".py")) continue;
    const auto [data, bytes] = archive.getRecord(name);
    const std::string_view code(static_cast<const char*>(data.get()), bytes);
    for (const char* word : {"__setstate__", "from_file", "ops.aten.save", "torch.save"})
      if (code.find(word) != std::string_view::npos)
        refuse(path,
               fmt::format("holds \"{}\" in {}, which a chain of modules may not", word, name));
  }
}

bool is_inactive_dropout(const torch::jit::Node& node) {
  if (node.inputs().size() != 3) return false;
  const auto train = torch::jit::toIValue(node.inputs()[2]);
  const auto share = torch::jit::toIValue(node.inputs()[1]);
  return (train && train->isBool() && !train->toBool()) ||
         (share && share->isDouble() && share->toDouble() == 0.0);
}

void check_node(const std::string& path, const torch::jit::Node& node) {
  const std::string kind = node.kind().toQualString();
  if (std::ranges::find(kOutside, kind) != kOutside.end())
    refuse(path, fmt::format("calls {}, which a chain of modules may not", kind));
  if (kind == "prim::CallFunction" || kind == "prim::CallMethod" || kind == "prim::fork" ||
      kind == "prim::Loop")
    if (kind != "prim::Loop")
      refuse(path, fmt::format("has {}, whose code cannot be looked at", kind));
  if (!kind.starts_with("aten::") && !kind.starts_with("prim::"))
    refuse(path, fmt::format("calls {}, which is no operation of LibTorch itself", kind));
  if (!kind.starts_with("aten::")) return;
  const std::string_view name = std::string_view(kind).substr(6);
  if (std::ranges::find(kRandom, name) == kRandom.end() || is_inactive_dropout(node)) return;
  refuse(path, fmt::format("draws random numbers ({}), which would differ when the backward pass "
                           "runs the module again; export it without",
                           kind));
}

void check_nodes(const std::string& path, const torch::jit::Block& block) {
  for (const torch::jit::Node* node : block.nodes()) {
    check_node(path, *node);
    for (const torch::jit::Block* inner : node->blocks()) check_nodes(path, *inner);
  }
}

/// One step per operation, the same each time: the optimizing executor first watches a few runs
/// and then rounds otherwise.
class PlainExecution {
 public:
  PlainExecution() : before_(torch::jit::getGraphExecutorOptimize()) {
    torch::jit::setGraphExecutorOptimize(false);
  }
  ~PlainExecution() { torch::jit::setGraphExecutorOptimize(before_); }
  PlainExecution(const PlainExecution&) = delete;
  PlainExecution& operator=(const PlainExecution&) = delete;

 private:
  bool before_;
};

/// A loaded file whose parameters are set anew for each call.
class ScriptedModule {
 public:
  ScriptedModule(const ModuleBlock& block, Dtype dtype);

  /// `parameters` in the order of `names`.
  void order(const std::vector<std::string>& names) {
    for (const std::string& name : names) ordered_.push_back(slots_.at(name));
  }
  at::Tensor operator()(const std::vector<at::Tensor>& parameters,
                        const std::vector<at::Tensor>& inputs);
  const std::string& path() const { return path_; }

 private:
  struct Slot {
    Module owner;
    std::string name;
    at::Tensor empty;  // of no memory: what stands there between calls
  };
  void find_slots();
  void check_parameters(const ModuleBlock& block) const;
  void check_graph() const;
  void convert_buffers(Dtype dtype);
  void release() {
    for (Slot& slot : ordered_) slot.owner.setattr(slot.name, slot.empty);
  }

  std::string path_;
  Module module_;
  std::map<std::string, Slot> slots_;
  std::vector<Slot> ordered_;
  std::vector<std::pair<std::string, at::Tensor>> buffers_;
  std::mutex mutex_;
};

ScriptedModule::ScriptedModule(const ModuleBlock& block, Dtype dtype) : path_(block.path) {
  on_file(path_, "is no TorchScript file", [&] {
    check_code(path_);
    module_ = torch::jit::load(path_, at::kCPU);
    return 0;
  });
  check_graph();
  find_slots();
  check_parameters(block);
  convert_buffers(dtype);
}

void ScriptedModule::check_graph() const {
  if (!module_.find_method("forward")) refuse(path_, "has no method forward");
  on_file(path_, "cannot be looked at", [&] {
    const auto graph = module_.get_method("forward").graph()->copy();
    torch::jit::Inline(*graph);
    check_nodes(path_, *graph->block());
    return 0;
  });
}

void ScriptedModule::find_slots() {
  for (const auto& named : module_.named_parameters()) {
    Module owner = module_;
    std::string rest = named.name;
    for (size_t dot = rest.find('.'); dot != std::string::npos; dot = rest.find('.')) {
      owner = owner.attr(rest.substr(0, dot)).toModule();
      rest = rest.substr(dot + 1);
    }
    const at::Tensor empty =
        at::zeros({1}, named.value.options().requires_grad(false)).expand(named.value.sizes());
    slots_.emplace(named.name, Slot{owner, rest, empty});
    owner.setattr(rest, empty);
  }
}

void ScriptedModule::check_parameters(const ModuleBlock& block) const {
  for (const ParameterShape& parameter : block.parameters) {
    const auto slot = slots_.find(parameter.name);
    if (slot == slots_.end())
      refuse(path_,
             fmt::format("has no parameter {}, which {} states", parameter.name, kModulesManifest));
    if (slot->second.empty.sizes() != at::IntArrayRef(parameter.dims))
      refuse(path_, fmt::format("has the parameter {} of [{}]; {} states [{}]", parameter.name,
                                fmt::join(slot->second.empty.sizes(), ", "), kModulesManifest,
                                fmt::join(parameter.dims, ", ")));
  }
  for (const auto& [name, slot] : slots_)
    if (std::ranges::none_of(block.parameters, [&, &name = name](const ParameterShape& one) {
          return one.name == name;
        }))
      refuse(path_,
             fmt::format("has the parameter {}, which {} does not state", name, kModulesManifest));
}

void ScriptedModule::convert_buffers(Dtype dtype) {
  for (const auto& named : module_.named_buffers()) {
    at::Tensor buffer = named.value;
    if (buffer.is_floating_point()) buffer.set_data(buffer.to(tensor::scalar_type(dtype)));
    buffers_.emplace_back(named.name, buffer);
  }
}

at::Tensor ScriptedModule::operator()(const std::vector<at::Tensor>& parameters,
                                      const std::vector<at::Tensor>& inputs) {
  const std::lock_guard lock(mutex_);
  const PlainExecution plain;
  std::vector<int64_t> versions;
  for (const auto& [name, buffer] : buffers_)
    versions.push_back(static_cast<int64_t>(buffer._version()));
  at::Tensor output;
  try {
    for (size_t i = 0; i < ordered_.size(); ++i)
      ordered_[i].owner.setattr(ordered_[i].name, parameters[i]);
    const c10::IValue result =
        module_.forward(std::vector<c10::IValue>(inputs.begin(), inputs.end()));
    if (!result.isTensor()) refuse(path_, "gives something else than one tensor");
    output = result.toTensor();
  } catch (...) {
    release();
    throw;
  }
  release();
  for (size_t i = 0; i < buffers_.size(); ++i)
    if (static_cast<int64_t>(buffers_[i].second._version()) != versions[i])
      refuse(path_, fmt::format("changes its buffer {}, and a module keeps no state: take a norm "
                                "that keeps none",
                                buffers_[i].first));
  return output;
}

/// One sequence and two, of zeros: what fails, fails before the run begins.
void try_out(ScriptedModule& module, const UnitShape& unit, const AutogradForm& form, Dtype dtype,
             int64_t context) {
  const at::AutoGradMode recording(false);
  const auto options = at::TensorOptions().dtype(tensor::scalar_type(dtype));
  std::vector<at::Tensor> parameters;
  for (const ParameterShape& parameter : unit.parameters)
    parameters.push_back(at::zeros({1}, options).expand(parameter.dims));
  const auto tokens = [&](int64_t batch) { return at::zeros({batch, context}, at::kLong); };
  for (const int64_t batch : {1, 2}) {
    std::vector<int64_t> sizes = {batch}, expected = {batch};
    sizes.insert(sizes.end(), form.input_dims.begin(), form.input_dims.end());
    expected.insert(expected.end(), form.output_dims.begin(), form.output_dims.end());
    std::vector<at::Tensor> inputs = {
        form.input == AutogradInput::kActivation ? at::zeros(sizes, options)
        : form.input == AutogradInput::kTokens   ? tokens(batch)
                                                 : tokens(batch).to(options.dtype()).unsqueeze(-1)};
    if (form.output == AutogradOutput::kLosses) inputs.push_back(tokens(batch));
    const at::Tensor output =
        on_file(module.path(), "fails on zeros", [&] { return module(parameters, inputs); });
    if (output.sizes() != at::IntArrayRef(expected))
      refuse(module.path(), fmt::format("gives [{}] for {} sequences; {} states [{}]",
                                        fmt::join(output.sizes(), ", "), batch, kModulesManifest,
                                        fmt::join(expected, ", ")));
  }
}

AutogradForm form_of(const ModuleChain& chain, size_t index) {
  AutogradForm form;
  form.vocabulary = chain.vocabulary;
  form.output_dims = chain.blocks[index].output;
  if (index > 0)
    form.input_dims = chain.blocks[index - 1].output;
  else
    form.input =
        chain.input == ModuleInput::kTokens ? AutogradInput::kTokens : AutogradInput::kFloats;
  if (index + 1 == chain.blocks.size())
    form.output = chain.loss == ModuleLoss::kCrossEntropy ? AutogradOutput::kCrossEntropy
                                                          : AutogradOutput::kLosses;
  return form;
}

std::unique_ptr<Block> make_block(const ModelShape& shape, int64_t index, Dtype dtype) {
  const auto at = static_cast<size_t>(index);
  const ModuleChain& chain = *shape.modules;
  ensure(chain.from_folder(), "a module is a file");
  const ModuleBlock& block = chain.blocks.at(at);
  const UnitShape& unit = shape.units[static_cast<size_t>(shape.blocks[at].unit)];
  const auto module = std::make_shared<ScriptedModule>(block, dtype);
  std::vector<std::string> names;
  for (const ParameterShape& parameter : unit.parameters)
    names.push_back(parameter.name.substr(block.name.size() + 1));
  module->order(names);
  const AutogradForm form = form_of(chain, at);
  try_out(*module, unit, form, dtype, chain.context);
  return std::make_unique<AutogradBlock>(
      unit, form, dtype,
      [module](const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& inputs) {
        return (*module)(parameters, inputs);
      });
}

const Provides kBlocks(make_module_block, make_block);

}  // namespace
}  // namespace strait::model
