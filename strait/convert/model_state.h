// A whole model in memory: what every form of storing one is read into and written from.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "strait/base/dtype.h"
#include "strait/checkpoint/manifest.h"
#include "strait/config/run.h"
#include "strait/shape/shape.h"

namespace strait::convert {

/// Which states are wanted: the weights alone, or those of the optimizer too.
enum class Part { kWeights, kAll };

/// By name (checkpoint::kMaster, ...): for each unit of the shape its elements, in the state's
/// dtype.
using States = std::map<std::string, std::vector<std::vector<std::byte>>>;

/// What belongs to a sender or to the whole run, not to the model: residuals, values. Stored as it
/// is.
struct Kept {
  checkpoint::StateRange range;
  std::vector<std::byte> bytes;
};

struct ModelState {
  Run run;  // of the training that made it; of an import the defaults, with the model's sizes
  std::string tokenizer_json;
  ModelShape shape;
  Dtype dtype = Dtype::kFloat32;  // of all states
  checkpoint::Manifest about;     // without shards and files
  States states;
  std::vector<Kept> kept;
  /// Name and contents of the files beside a Hugging Face model, as they were imported.
  std::map<std::string, std::string> companions;
  std::vector<std::string> notes;  // what was added, left out or is worth knowing

  /// The bytes of one parameter. InternalError when there is no such state.
  std::span<std::byte> parameter(const std::string& state, int64_t unit,
                                 const ParameterShape& parameter);
  std::span<const std::byte> parameter(const std::string& state, int64_t unit,
                                       const ParameterShape& parameter) const;
  /// NothingFits, before anything is allocated, when this computer has less memory than `count`
  /// states take.
  void require_memory_for(int64_t count) const;
  /// UserError naming the parameter when a weight is not finite. `path`: where it comes from.
  void require_finite_weights(const std::string& path) const;
  /// Adds a state of zeros.
  void add_state(const std::string& state);
  /// checkpoint::parameter_hash of the weights.
  std::string parameter_hash() const;
};

/// Run, tokenizer and shape of a stored model. UserError when they do not fit together.
ModelState make_state(const std::string& run_toml, const std::string& tokenizer_json,
                      const std::string& path);

/// From a checkpoint of any number of ranks, or a run folder's newest. Errors as
/// CheckpointReader's.
ModelState read_checkpoint(const std::string& path, Part part);

/// Writes RUN_DIR/checkpoints/step-... by one rank, and RUN_DIR/run.toml, which goes on from it.
/// Moments that the state does not have are zeros. InputOutputError when the system fails.
std::vector<checkpoint::FileRecord> write_checkpoint(const ModelState& state,
                                                     const std::string& run_dir);

/// One safetensors file: the parameters under their names, moments as "first_moment/NAME", and as
/// metadata "manifest", "run.toml" and "tokenizer.json". The manifest, which has a hash of its own,
/// has one of everything else.
inline constexpr const char* kSingleFileFormat = "strait.model/1";
std::vector<checkpoint::FileRecord> write_single_file(const ModelState& state,
                                                      const std::string& path);

/// The inverse. UserError naming the file and the tensor: unknown, missing, of another dtype or
/// shape, or content or weights that do not have the hash that the manifest states. Cost: two
/// passes over the file, one over those of version 0.1, of which only the weights are hashed.
ModelState read_single_file(const std::string& path, Part part);

}  // namespace strait::convert
