// Small runs of a U-Net.
#pragma once

#include <string>
#include <vector>

#include "tests/train/torch_peer.h"
#include "tests/train/trained.h"

namespace strait::test {

class UnetRuns : public MeshRuns {
 protected:
  using Sets = std::vector<std::string>;

  strait::Run run_of(const Sets& more) {
    return parse_run(
        "name = \"unet\"\n", "unet.toml",
        chain_sets({"model.family=unet", "model.unet.channels=4,8", "model.unet.image=8",
                    "model.unet.attention_from=4", "model.unet.colors=2",
                    "data.path=synthetic:images/size=8/colors=2/count=200"},
                   more));
  }
  Trained train(int64_t ranks, const Sets& more = {}) {
    return trained(run_of(more), ranks, next_folder());
  }
  const Trained& serial() {
    if (serial_.losses.empty()) serial_ = train(1, {"train.micro_batch_size=8"});
    return serial_;
  }

 private:
  Trained serial_;
};

}  // namespace strait::test
