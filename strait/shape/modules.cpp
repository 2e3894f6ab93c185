#include "strait/shape/modules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <set>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/json.h"
#include "strait/shape/library_tape.h"
#include "strait/shape/unet_work.h"
#include "strait/shape/unit.h"

namespace strait {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostManifestBytes = int64_t{64} << 20;
constexpr int64_t kMostBlocks = 10'000, kMostParameters = 10'000;
constexpr int64_t kMostDims = 16;
constexpr int64_t kMostElements = int64_t{1} << 45;  // of a tensor; products of sizes stay in range

/// A value of the manifest, and where it stands: "blocks[2].output".
class Node {
 public:
  Node(const Json& json, std::string file, std::string key)
      : json_(json), file_(std::move(file)), key_(std::move(key)) {}

  [[noreturn]] void refuse(const std::string& message) const {
    ErrorPlace place;
    place.file = file_;
    place.key = key_;
    throw UserError(fmt::format("{}: {} {}", file_, key_.empty() ? "the manifest" : key_, message),
                    place);
  }

  /// An object of exactly these members; those behind the first `required` may be left out.
  void require_members(const std::vector<std::string>& names, size_t required) const {
    if (!json_.is_object()) refuse("is no object");
    for (const auto& [name, value] : json_.as_object())
      if (std::ranges::find(names, name) == names.end())
        member_key(name.substr(0, 100), value)
            .refuse(fmt::format("is unknown; the nearest is \"{}\" ({})",
                                nearest_choice(name.substr(0, 100), names),
                                fmt::join(names, ", ")));
    for (size_t i = 0; i < required; ++i)
      if (json_.find(names[i]) == nullptr) refuse(fmt::format("lacks \"{}\"", names[i]));
  }
  Node at(const std::string& name) const { return member_key(name, json_.at(name)); }
  bool has(const std::string& name) const { return json_.find(name) != nullptr; }

  std::vector<Node> elements(int64_t least, int64_t most) const {
    if (!json_.is_array()) refuse("is no array");
    const int64_t count = static_cast<int64_t>(json_.size());
    if (count < least || count > most)
      refuse(fmt::format("has {} elements; the nearest valid number is {}", count,
                         std::clamp(count, least, most)));
    std::vector<Node> nodes;
    for (const Json& element : json_.as_array())
      nodes.emplace_back(element, file_, fmt::format("{}[{}]", key_, nodes.size()));
    return nodes;
  }

  int64_t integer(int64_t least, int64_t most) const {
    if (!json_.is_integer()) refuse("is no whole number");
    const int64_t value = json_.as_integer();
    if (value < least || value > most)
      refuse(fmt::format("= {} is out of range; the nearest valid value is {}", value,
                         std::clamp(value, least, most)));
    return value;
  }
  double count() const {
    if (!json_.is_number()) refuse("is no number");
    const double value = json_.as_number();
    if (!std::isfinite(value) || value < 0 || value > 1e30)
      refuse("is out of range; the nearest valid value is 0");
    return value;
  }
  bool flag() const {
    if (!json_.is_bool()) refuse("is neither true nor false");
    return json_.as_bool();
  }
  const std::string& text() const {
    if (!json_.is_string()) refuse("is no string");
    return json_.as_string();
  }
  /// The index of one of `choices`.
  size_t choice(const std::vector<std::string>& choices) const {
    const auto found = std::ranges::find(choices, text());
    if (found == choices.end())
      refuse(fmt::format("is unknown; the nearest valid value is \"{}\" ({})",
                         nearest_choice(text().substr(0, 100), choices), fmt::join(choices, ", ")));
    return static_cast<size_t>(found - choices.begin());
  }
  /// A word of letters, digits, '_', '-' and '.', which does not begin with a dot.
  const std::string& word() const {
    const std::string& name = text();
    const bool good =
        !name.empty() && name.size() <= 200 && name[0] != '.' &&
        std::ranges::all_of(name, [](char c) {
          return std::isalnum(static_cast<uint8_t>(c)) || c == '_' || c == '-' || c == '.';
        });
    if (!good)
      refuse("is no name: 1 to 200 letters, digits, '_', '-' and '.', not beginning with a dot");
    return name;
  }

  std::vector<int64_t> dims(int64_t least) const {
    std::vector<int64_t> list;
    int64_t product = 1;
    for (const Node& node : elements(least, kMostDims)) {
      list.push_back(node.integer(1, kMostElements));
      if (list.back() > kMostElements / product)
        refuse(fmt::format("has more than {} elements", kMostElements));
      product *= list.back();
    }
    return list;
  }

  const std::string& file() const { return file_; }

 private:
  Node member_key(const std::string& name, const Json& value) const {
    return {value, file_, key_.empty() ? name : key_ + "." + name};
  }

  const Json& json_;
  std::string file_, key_;
};

/// The path of a file of the folder, whatever links lead to.
std::string path_in(const std::string& folder, const Node& name) {
  const fs::path path = fs::path(folder) / name.word();
  std::error_code error;
  const fs::path home = fs::canonical(folder, error), real = fs::canonical(path, error);
  if (error) name.refuse(fmt::format("names {}, which is not there", path.string()));
  if (real.parent_path() != home)
    name.refuse(
        fmt::format("names {}, which leads out of the folder to {}", path.string(), real.string()));
  const fs::file_status status = fs::status(real, error);
  if (error || !fs::is_regular_file(status))
    name.refuse(fmt::format("names {}, which is no file", path.string()));
  return path.string();
}

ParameterShape read_parameter(const Node& node) {
  node.require_members({"name", "dims", "decay"}, 2);
  ParameterShape parameter;
  parameter.name = node.at("name").word();
  parameter.dims = node.at("dims").dims(0);
  parameter.weight_decay = node.has("decay") ? node.at("decay").flag() : parameter.dims.size() >= 2;
  return parameter;
}

std::vector<ParameterShape> read_parameters(const Node& node) {
  std::vector<ParameterShape> parameters;
  std::set<std::string> names;
  int64_t elements = 0;
  for (const Node& entry : node.elements(0, kMostParameters)) {
    parameters.push_back(read_parameter(entry));
    if (!names.insert(parameters.back().name).second)
      entry.at("name").refuse("stands twice in the block");
    elements += parameters.back().elements();
    if (elements > kMostElements) node.refuse("are too many elements");
  }
  if (elements == 0)
    node.refuse("is empty: a block has something to train; join it with a neighbour");
  return parameters;
}

ModuleWork read_work(const Node& node) {
  node.require_members({"calls", "activations", "passed"}, 3);
  const auto number = [&](const char* name, int64_t least) {
    return static_cast<double>(node.at(name).integer(least, kMostElements));
  };
  return {number("calls", 1), number("activations", 0), number("passed", 0)};
}

ModuleBlock read_block(const Node& node, const std::string& folder) {
  node.require_members({"name", "file", "bytes", "output", "forward_flops", "parameters", "work"},
                       6);
  ModuleBlock block;
  block.name = node.at("name").word();
  block.path = path_in(folder, node.at("file"));
  block.file_bytes = node.at("bytes").integer(1, kMostElements);
  const auto there = static_cast<int64_t>(fs::file_size(block.path));
  if (there != block.file_bytes)
    node.at("bytes").refuse(
        fmt::format("= {}, but {} has {} bytes", block.file_bytes, block.path, there));
  block.output = node.at("output").dims(1);
  block.forward_flops = node.at("forward_flops").count();
  block.parameters = read_parameters(node.at("parameters"));
  if (node.has("work")) block.work = read_work(node.at("work"));
  return block;
}

void check_last(const ModuleChain& chain, const Node& node) {
  std::vector<int64_t> want = {chain.context};
  if (chain.loss == ModuleLoss::kCrossEntropy) want.push_back(chain.vocabulary);
  if (chain.blocks.back().output != want)
    node.at("output").refuse(fmt::format("= [{}], but a chain of this loss ends with [{}]",
                                         fmt::join(chain.blocks.back().output, ", "),
                                         fmt::join(want, ", ")));
}

ModuleChain read_chain(const Node& top, const std::string& folder) {
  top.require_members(
      {"format", "version", "vocabulary", "context", "input", "loss", "weights", "blocks"}, 8);
  top.at("format").choice({"strait-modules"});
  top.at("version").integer(1, 1);
  ModuleChain chain;
  chain.folder = folder;
  chain.vocabulary = top.at("vocabulary").integer(1, 1'000'000'000);
  chain.context = top.at("context").integer(1, 10'000'000);
  chain.input = static_cast<ModuleInput>(top.at("input").choice({"tokens", "floats"}));
  chain.loss = static_cast<ModuleLoss>(top.at("loss").choice({"cross_entropy", "own"}));
  chain.weights = path_in(folder, top.at("weights"));
  const std::vector<Node> nodes = top.at("blocks").elements(2, kMostBlocks);
  std::set<std::string> names;
  for (const Node& node : nodes) {
    chain.blocks.push_back(read_block(node, folder));
    if (!names.insert(chain.blocks.back().name).second)
      node.at("name").refuse("stands twice in the chain");
  }
  check_last(chain, nodes.back());
  return chain;
}

[[noreturn]] void refuse_path(const std::string& message) {
  ErrorPlace place;
  place.key = "model.path";
  throw UserError(message, place);
}

int64_t product(const std::vector<int64_t>& dims) {
  int64_t elements = 1;
  for (const int64_t dim : dims) elements *= dim;
  return elements;
}

/// Equal for blocks of equal sizes.
std::string signature_of(const ModuleBlock& block) {
  const ModuleWork& work = block.work;
  std::string text =
      fmt::format("module output=[{}] flops={} work={},{},{}", fmt::join(block.output, ","),
                  block.forward_flops, work.calls, work.activations, work.passed);
  for (const ParameterShape& parameter : block.parameters)
    text += fmt::format(" {}[{}]", parameter.name, fmt::join(parameter.dims, ","));
  return text;
}

/// log_softmax, one target of each row, and sums; the gradient of the choice is a map of zeros.
ModuleWork cross_entropy_work(int64_t logits) {
  const auto numbers = static_cast<double>(logits);
  return {.calls = 12, .activations = numbers, .passed = 3 * numbers};
}

/// A forward, or (`backward`) a forward and the gradients of all that it read. A gradient passes a
/// number that was kept beside those that the operation passed, and a product has two.
LibraryWork module_work(const ModuleChain& chain, size_t index, int64_t batch, Dtype dtype,
                        bool backward) {
  const ModuleBlock& block = chain.blocks.at(index);
  ModuleWork work = block.work;
  if (index + 1 == chain.blocks.size() && chain.loss == ModuleLoss::kCrossEntropy) {
    const ModuleWork loss = cross_entropy_work(product(block.output));
    work.calls += loss.calls;
    work.activations += loss.activations;
    work.passed += loss.passed;
  }
  const double sequences = static_cast<double>(batch);
  LibraryWork sum;
  sum.calls = (backward ? 3 : 1) * work.calls;
  if (backward) sum.calls += kCallsOfLeaf / 2 * static_cast<double>(block.parameters.size());
  sum.activations = (backward ? 2 : 1) * sequences * work.activations;
  sum.passed_bytes =
      (backward ? 2.5 : 1) * sequences * work.passed * static_cast<double>(dtype_bytes(dtype));
  return sum;
}

}  // namespace

int64_t ModuleChain::output_elements(int64_t block) const {
  const auto at = static_cast<size_t>(block);
  return at + 1 == blocks.size() ? 0 : product(blocks.at(at).output);
}

std::string ModuleChain::description() const {
  return from_folder() ? "modules of " + folder : "U-Net";
}

std::shared_ptr<const ModuleChain> read_modules(const std::string& folder) {
  if (folder.empty())
    refuse_path(
        "model.path is required with model.family = \"modules\": a folder with modules.json, as "
        "tools/export_modules writes it");
  const std::string path = folder + "/" + kModulesManifest;
  std::error_code error;
  if (!fs::is_directory(folder, error))
    refuse_path(
        fmt::format("model.path = \"{}\" is no folder; it wants one with modules.json", folder));
  if (!fs::exists(path, error))
    refuse_path(
        fmt::format("model.path = \"{}\" holds no modules.json; tools/export_modules "
                    "writes such a folder",
                    folder));
  if (fs::is_regular_file(path, error))
    if (const auto bytes = static_cast<int64_t>(fs::file_size(path)); bytes > kMostManifestBytes)
      refuse_path(fmt::format("{} has {} bytes; the most is {}", path, bytes, kMostManifestBytes));
  const Json json = Json::parse(read_file(path), path);
  return std::make_shared<const ModuleChain>(read_chain(Node(json, path, ""), folder));
}

ShapeOptions modules_options(const ModuleChain& chain) {
  ShapeOptions options;
  options.context = chain.context;
  options.layers = static_cast<int64_t>(chain.blocks.size());
  return options;
}

ModelShape modules_shape(const ModelOptions& model, int64_t vocabulary) {
  if (!model.modules)
    refuse_path("model.path was not read; model.family = \"modules\" wants a folder");
  const ModuleChain& chain = *model.modules;
  if (chain.from_folder() && vocabulary > chain.vocabulary)
    refuse_path(
        fmt::format("{} tells {} tokens apart, but the tokenizer has {}; export the "
                    "modules with vocabulary = {}",
                    chain.folder, chain.vocabulary, vocabulary, vocabulary));
  ModelShape shape;
  shape.family = model.family;
  shape.options = model.shape;
  shape.vocabulary = chain.vocabulary;
  shape.modules = model.modules;
  for (const ModuleBlock& block : chain.blocks) {
    std::vector<ParameterShape> parameters = block.parameters;
    for (ParameterShape& parameter : parameters) parameter.name = block.name + "." + parameter.name;
    shape.blocks.push_back({block.name,
                            BlockKind::kCustom,
                            static_cast<int64_t>(shape.units.size()),
                            signature_of(block),
                            {{chain.from_folder() ? "module" : "unet"}}});
    shape.units.push_back(make_unit(block.name, parameters));
  }
  return shape;
}

BlockSizes module_sizes(const ModuleChain& chain, int64_t block, int64_t batch, Dtype dtype,
                        const GridSizes& grid) {
  const int64_t element = batch * dtype_bytes(dtype);
  BlockSizes sizes;
  // What passes between the blocks of a U-Net is cut over y.
  if (block > 0) sizes.input_bytes = chain.output_elements(block - 1) / grid.y * element;
  sizes.output_bytes = chain.output_elements(block) / grid.y * element;
  double flops = chain.blocks.at(static_cast<size_t>(block)).forward_flops;
  if (chain.unet) {
    const UnetParts parts(chain.unet, block, grid.x, grid.y);
    flops = parts.forward_flops();
    if (!parts.is_shared()) {
      sizes.forward_library = unet_work(parts, parts.forward().front(), batch, dtype);
      sizes.backward_library = unet_work(parts, parts.backward().front(), batch, dtype);
    }
  } else {
    const auto index = static_cast<size_t>(block);
    sizes.forward_library = module_work(chain, index, batch, dtype, false);
    sizes.backward_library = module_work(chain, index, batch, dtype, true);
  }
  sizes.forward_flops = static_cast<double>(batch) * flops;
  // The last module is run forward and backward at once.
  const bool last = block + 1 == static_cast<int64_t>(chain.blocks.size());
  sizes.backward_flops = (last ? 2.0 : 3.0) * sizes.forward_flops;
  return sizes;
}

const char* loss_unit(const ModelOptions& model) {
  if (!model.modules || model.modules->loss == ModuleLoss::kCrossEntropy) return "nats per token";
  return model.modules->unet ? "squared error" : "per token";
}

double module_flops_per_token(const ModuleChain& chain) {
  double forward = 0;
  for (const ModuleBlock& block : chain.blocks) forward += block.forward_flops;
  return 3.0 * forward / static_cast<double>(chain.context);
}

}  // namespace strait
