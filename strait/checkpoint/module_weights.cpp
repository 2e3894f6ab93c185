#include "strait/checkpoint/module_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <vector>

#include "strait/base/errors.h"
#include "strait/base/finite.h"
#include "strait/checkpoint/files/hash.h"

namespace strait::checkpoint {
namespace {

constexpr int64_t kChunkElements = int64_t{1} << 20;

[[noreturn]] void refuse(const std::string& path, const std::string& tensor,
                         const std::string& message) {
  ErrorPlace place;
  place.file = path;
  place.key = tensor;
  throw UserError(fmt::format("{}: {} {}", path, tensor, message), place);
}

void check_tensor(const SafetensorsFile& file, const std::string& name,
                  const std::vector<int64_t>& dims) {
  const auto found = std::ranges::find(file.tensors(), name, &TensorInfo::name);
  if (found == file.tensors().end()) refuse(file.path(), name, "is not there");
  if (found->dims != dims)
    refuse(file.path(), name,
           fmt::format("has the dims [{}]; {} states [{}]", fmt::join(found->dims, ", "),
                       kModulesManifest, fmt::join(dims, ", ")));
  if (found->dtype != Dtype::kFloat32 && found->dtype != Dtype::kFloat64)
    refuse(file.path(), name,
           fmt::format("is {}; the nearest valid type is fp32", dtype_name(found->dtype)));
}

template <class From, class To>
void convert(const std::vector<std::byte>& from, int64_t count, std::byte* to) {
  std::transform(reinterpret_cast<const From*>(from.data()),
                 reinterpret_cast<const From*>(from.data()) + count, reinterpret_cast<To*>(to),
                 [](From value) { return static_cast<To>(value); });
}

/// Elements [begin, end) of a tensor as `dtype`.
void read_range(const SafetensorsFile& file, const TensorInfo& tensor, int64_t begin, int64_t end,
                Dtype dtype, std::byte* to) {
  std::vector<std::byte> buffer;
  for (int64_t at = begin; at < end; at += kChunkElements) {
    const int64_t count = std::min(kChunkElements, end - at);
    buffer.resize(static_cast<size_t>(count * dtype_bytes(tensor.dtype)));
    file.read_elements(tensor, at, buffer);
    if (const auto bad = first_non_finite(tensor.dtype, buffer))
      refuse(file.path(), tensor.name, fmt::format("is not finite at element {}", at + *bad));
    const bool from_wide = tensor.dtype == Dtype::kFloat64, to_wide = dtype == Dtype::kFloat64;
    (from_wide ? to_wide ? convert<double, double> : convert<double, float>
     : to_wide ? convert<float, double>
               : convert<float, float>)(buffer, count, to + (at - begin) * dtype_bytes(dtype));
  }
}

}  // namespace

ModuleWeights::ModuleWeights(const ModuleChain& chain) : file_(chain.weights) {
  std::set<std::string> names;
  for (const ModuleBlock& block : chain.blocks)
    for (const ParameterShape& parameter : block.parameters) {
      const std::string name = block.name + "." + parameter.name;
      check_tensor(file_, name, parameter.dims);
      names.insert(name);
    }
  for (const TensorInfo& tensor : file_.tensors())
    if (!names.contains(tensor.name))
      refuse(file_.path(), tensor.name, fmt::format("is no parameter of {}", kModulesManifest));
}

void ModuleWeights::read(const UnitShape& unit, Dtype dtype, const ElementRuns& runs,
                         std::byte* destination) const {
  ensure(dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64, "module weights: fp32 or fp64");
  for_each_run(runs, [&](int64_t at, int64_t packed, int64_t length) {
    for (const ParameterShape& parameter : unit.parameters) {
      const int64_t first = std::max(at, parameter.offset);
      const int64_t last = std::min(at + length, parameter.offset + parameter.elements());
      if (first < last)
        read_range(file_, file_.tensor(parameter.name), first - parameter.offset,
                   last - parameter.offset, dtype,
                   destination + (packed + first - at) * dtype_bytes(dtype));
    }
  });
}

std::string ModuleWeights::hash(const ModuleChain& chain) {
  std::vector<std::string> paths = {chain.folder + "/" + kModulesManifest, chain.weights};
  for (const ModuleBlock& block : chain.blocks) paths.push_back(block.path);
  Hasher128 hasher;
  for (const std::string& path : paths) hasher.update(InputFile(path).hash());
  return hasher.hex();
}

}  // namespace strait::checkpoint
