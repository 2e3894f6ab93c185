// A model of LibTorch modules without LibTorch: a chain of blocks with their parameters and sizes.
// They come from the manifest of a folder of TorchScript files (docs/modules.md has the format;
// tools/export_modules writes it), or are made here (unet.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "strait/shape/shape.h"
#include "strait/shape/split.h"

namespace strait {

/// The name of the family, which is no row of the table of families.
inline constexpr const char* kModulesFamily = "modules";
/// The manifest in the folder.
inline constexpr const char* kModulesManifest = "modules.json";

/// What enters the first module: token ids [B, T], or the ids as numbers [B, T, 1].
enum class ModuleInput : uint8_t { kTokens, kFloats };

/// What the last module gives: logits [B, T, vocabulary], whose cross-entropy is the loss; or, from
/// its input and the targets [B, T], the loss of each token [B, T].
enum class ModuleLoss : uint8_t { kCrossEntropy, kOwn };

/// What one forward of a module is beside its products, as LibraryWork counts it.
struct ModuleWork {
  double calls = 1;        // whatever the batch; at least one
  double activations = 0;  // of one sequence
  double passed = 0;       // numbers, of one sequence
};

/// One module of the chain.
struct ModuleBlock {
  std::string name;  // of the block and its unit
  std::string path;  // of the TorchScript file
  int64_t file_bytes = 0;
  std::vector<int64_t> output;             // dims that one sequence has behind it
  double forward_flops = 0;                // of one sequence
  ModuleWork work = {};                    // of a folder
  std::vector<ParameterShape> parameters;  // named as in the module; unordered, no offsets
};

struct Unet;  // shape/unet.h

struct ModuleChain {
  std::string folder;                          // "" where the blocks are made here
  std::shared_ptr<const Unet> unet = nullptr;  // then what they compute
  std::string weights;                         // path of the initial values
  int64_t vocabulary = 0, context = 0;
  ModuleInput input = ModuleInput::kTokens;
  ModuleLoss loss = ModuleLoss::kCrossEntropy;
  std::vector<ModuleBlock> blocks;  // at least two
  /// Elements of one sequence behind a block; 0 behind the last, whose loss is a number.
  int64_t output_elements(int64_t block) const;
  bool from_folder() const { return !folder.empty(); }
  /// For messages: "modules of FOLDER", "U-Net".
  std::string description() const;
};

/// Reads `folder`/modules.json. UserError naming the file and its key: what is no manifest, sizes
/// that do not fit or overflow, files that are missing, too short, or outside of the folder.
std::shared_ptr<const ModuleChain> read_modules(const std::string& folder);

/// What stands for the sizes of a transformer in a run of modules: context and number of blocks,
/// and the defaults of everything else.
ShapeOptions modules_options(const ModuleChain& chain);

/// The chain as a model: every block is of kind kCustom and has a unit of its own. UserError when
/// `vocabulary` tokens are more than the last module tells apart.
ModelShape modules_shape(const ModelOptions& model, int64_t vocabulary);

/// Sizes of a module: its forward is run again in the backward pass, so what autograd keeps lives
/// in a backward alone. What LibTorch does during a call is known of a U-Net (unet_work.h; of a
/// shared block by its ops). Of a folder it is what the manifest says and, for a cross-entropy,
/// that of its loss; the memory that it takes is not known (0). Of one rank of a grid that shares
/// blocks, which is a U-Net's.
BlockSizes module_sizes(const ModuleChain& chain, int64_t block, int64_t batch, Dtype dtype,
                        const GridSizes& grid = {});

/// What a loss of the model counts: "nats per token", "squared error" of a U-Net's noise, or, of a
/// module with a loss of its own, "per token".
const char* loss_unit(const ModelOptions& model);

/// Operations per token of a training step as block_sizes counts them, less the second forward.
double module_flops_per_token(const ModuleChain& chain);

}  // namespace strait
