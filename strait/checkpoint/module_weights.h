// Initial values of a chain of modules (shape/modules.h): a safetensors file in its folder.
#pragma once

#include <cstddef>

#include "strait/checkpoint/files/safetensors.h"
#include "strait/shape/element_runs.h"
#include "strait/shape/modules.h"

namespace strait::checkpoint {

/// Opens the file and checks that it holds every parameter of the chain, as BLOCK.PARAMETER, in
/// fp32 or fp64, and nothing else. UserError naming the file and the tensor. Thread-safe.
class ModuleWeights {
 public:
  explicit ModuleWeights(const ModuleChain& chain);

  /// The elements of `unit` behind `runs`, packed at `destination` in fp32 or fp64. UserError for
  /// values that are not finite.
  void read(const UnitShape& unit, Dtype dtype, const ElementRuns& runs,
            std::byte* destination) const;

  /// XXH3-128 of the manifest and of all files that it names.
  static std::string hash(const ModuleChain& chain);

 private:
  SafetensorsFile file_;
};

}  // namespace strait::checkpoint
