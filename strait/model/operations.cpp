#include "strait/model/operations.h"

namespace strait::model {

const char* dropout_purpose(DropoutPlace place) {
  switch (place) {
    case DropoutPlace::kEmbedding:
      return "dropout.embedding";
    case DropoutPlace::kAttention:
      return "dropout.attention";
    case DropoutPlace::kAttentionOutput:
      return "dropout.attention_output";
    case DropoutPlace::kMlpOutput:
      return "dropout.mlp_output";
  }
  return "dropout";
}

}  // namespace strait::model
