// Training with LibTorch alone: its autograd, its AdamW, on the batches of a run.
#pragma once

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/train/trained.h"

namespace strait::test {

/// What runs of chains of blocks set in common, with `more` behind it: 20 steps in fp64 at one
/// rate.
inline std::vector<std::string> chain_sets(std::vector<std::string> own,
                                           const std::vector<std::string>& more) {
  own.insert(own.end(),
             {"train.global_batch_size=8", "train.precision=fp64", "train.steps=20",
              "optimizer.schedule=constant", "optimizer.warmup_steps=0",
              "optimizer.learning_rate=3e-3", "runtime.threads_per_rank=1",
              "evaluation.every_steps=0", "evaluation.batches=2", "train.micro_batch_size=2"});
  own.insert(own.end(), more.begin(), more.end());
  return own;
}

class TorchPeer {
 public:
  using Weights = std::map<std::string, at::Tensor>;  // by name
  /// The mean loss of a batch.
  using Loss = std::function<at::Tensor(const Weights&, const BatchBuffer&)>;

  TorchPeer(const Weights& weights, Loss loss) : loss_(std::move(loss)) {
    for (const auto& [name, values] : weights) weights_[name] = values.clone().requires_grad_();
  }
  const at::Tensor& weight(const std::string& name) const { return weights_.at(name); }

  /// Matrices decay. The losses of the steps.
  std::vector<double> train(const std::vector<BatchBuffer>& batches, const OptimizerOptions& from) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (const bool decay : {true, false}) {
      std::vector<at::Tensor> list;
      for (const auto& [name, tensor] : weights_)
        if ((tensor.dim() >= 2) == decay) list.push_back(tensor);
      auto options = std::make_unique<torch::optim::AdamWOptions>(from.learning_rate);
      options->betas({from.betas[0], from.betas[1]}).eps(from.eps);
      options->weight_decay(decay ? from.weight_decay : 0.0);
      groups.emplace_back(list, std::move(options));
    }
    torch::optim::AdamW optimizer(groups, torch::optim::AdamWOptions(from.learning_rate));
    std::vector<double> losses;
    for (const BatchBuffer& batch : batches) {
      optimizer.zero_grad();
      const at::Tensor loss = loss_(weights_, batch);
      loss.backward();
      optimizer.step();
      losses.push_back(loss.item<double>());
    }
    return losses;
  }

 private:
  Weights weights_;
  Loss loss_;
};

/// A run of one rank, whose steps are one micro-batch each, and the peer on its batches: losses and
/// weights alike. The losses.
inline std::vector<double> expect_equal_to_peer(const Run& run, const std::string& folder,
                                                TorchPeer& peer, double tolerance) {
  std::vector<BatchBuffer> batches;
  train::Observer observer;
  observer.loaded = [&](int64_t, const BatchBuffer& batch) { batches.push_back(batch); };
  const train::Outcome outcome = train_small(run, 1, folder, observer);
  EXPECT_EQ(static_cast<int64_t>(batches.size()), run.train.steps);
  const std::vector<double> losses = peer.train(batches, run.optimizer);
  for (size_t step = 0; step < losses.size(); ++step)
    EXPECT_NEAR(outcome.losses[step], losses[step], tolerance * losses[step]) << step;
  const MasterWeights units = master_weights(folder, run);
  const checkpoint::CheckpointReader reader(folder);
  for (const checkpoint::UnitRecord& unit : reader.manifest().units)
    for (const auto& parameter : unit.parameters) {
      const at::Tensor want = peer.weight(parameter.name).detach().to(at::kDouble).reshape({-1});
      const auto begin = units.at(unit.name).begin() + parameter.offset;
      const at::Tensor got = at::tensor(std::vector<double>(begin, begin + want.numel()));
      EXPECT_LT((got - want).norm().item<double>(), tolerance * want.norm().item<double>())
          << parameter.name;
    }
  return losses;
}

}  // namespace strait::test
