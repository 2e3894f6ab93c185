// What chunks of products hide of their exchanges, by the simulator: for every way in which
// products are taken apart.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace strait::test {

/// Effective communication time of a step: what its compute stream waits for exchanges. Runs has
/// job_of(case, keys), step_of(case, keys) and Case; `tiles` below are keys of a run.
template <class Runs, class Case>
class HidingRuns : public Runs {
 protected:
  using Sets = std::vector<std::string>;
  static constexpr double kEnough = 1e9;  // GB/s
  static constexpr const char* kAuto = "tensor.tiles=auto";

  /// Products of nearly one size: 1 to 2 times width^2 weights each.
  Sets sets(double gigabytes, const std::string& tiles, double microseconds) const {
    return {"model.family=llama",
            "model.shape.tied_head=false",
            "model.shape.heads=16",
            "model.shape.kv_heads=2",
            "model.shape.width=256",
            "model.shape.ffn_width=256",
            "model.shape.context=1024",
            "model.shape.layers=16",
            "train.micro_batch_size=4",
            "train.precision=fp32",
            tiles,
            fmt::format("cluster.levels=[{{ name = \"world\", size = 0, gb_per_second = {}, "
                        "latency_microseconds = {} }}]",
                        gigabytes, microseconds)};
  }
  double seconds(double gigabytes, const std::string& tiles, double microseconds = 1) {
    return this->job_of(Case{}, sets(gigabytes, tiles, microseconds)).simulated.seconds;
  }
  double effective(double gigabytes, const std::string& tiles, const std::string& overlap) {
    Sets all = sets(gigabytes, tiles, 1);
    all.push_back(overlap);
    return this->job_of(Case{}, all).simulated.exposed_seconds;
  }

  /// At `rate`, where exchanges take as long as their products: where nothing else hides an
  /// exchange, and where gradients of weights hide what they can.
  void expect_sixty_percent(double rate) {
    for (const std::string overlap : {"tensor.overlap=[]", "tensor.overlap=oar,ors,oag"}) {
      const double plain = effective(rate, "tensor.tiles=off", overlap);
      const auto share = [&](const std::string& tiles) {
        return effective(rate, tiles, overlap) / plain;
      };
      EXPECT_LT(share(kAuto), 0.4) << overlap;
      EXPECT_LT(share("tensor.tiles=on:16"), 0.4) << overlap;
      EXPECT_LT(share("tensor.tiles=on:2"), 0.8) << overlap;
    }
  }

  /// X2, and users' wish (7e): never slower than predicted for the plain path.
  void expect_never_slower(double rate) {
    for (const double gigabytes : {0.1 * rate, rate, 10 * rate})
      for (const double microseconds : {1.0, 100.0, 3000.0})
        EXPECT_LE(seconds(gigabytes, kAuto, microseconds),
                  seconds(gigabytes, "tensor.tiles=off", microseconds) * (1 + 1e-9))
            << gigabytes << " GB/s, " << microseconds;
  }
};

}  // namespace strait::test
