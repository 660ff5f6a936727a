// A CUDA device without a driver: hooks and a device guard that say yes and do nothing, so that PyTorch's own dispatcher
// and autograd engine run with fake tensors on builds with and without CUDA. Compiled against the headers of the torch
// at hand: both classes are tables of virtual functions whose layout changes between versions. Methods that only some
// versions have are declared without `override`.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Registry.h>

#include <string>

namespace {

std::atomic<int> device_count{1};
thread_local c10::DeviceIndex current_device = 0;

c10::Device cuda(c10::DeviceIndex index) {
  return c10::Device(c10::DeviceType::CUDA, index < 0 ? current_device : index);
}

// Random numbers on the device are never drawn; a generator only has to be there and to keep its seed.
struct FakeGenerator : public at::CPUGeneratorImpl {
  explicit FakeGenerator(c10::DeviceIndex index) : at::CPUGeneratorImpl(0) {
    device_ = cuda(index);
  }
};

struct FakeHooks : public at::CUDAHooksInterface {
  explicit FakeHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const { return true; }
  bool isAvailable() const { return true; }
  bool hasCUDA() const override { return true; }
  std::string showConfig() const override { return "  - CUDA Runtime of a fake device\n"; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const { return static_cast<c10::DeviceIndex>(device_count.load()); }
  int getNumGPUs() const override { return device_count.load(); }
  c10::DeviceIndex current_device() const override { return ::current_device; }
  void setCurrentDevice(c10::DeviceIndex index) const { ::current_device = index; }
  c10::DeviceIndex getCurrentDevice() const { return ::current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const {
    auto before = ::current_device;
    ::current_device = index;
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const {
    return index < 0 ? ::current_device : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index = -1) const {
    static std::array<at::Generator, 128> generators;
    auto& generator = generators[(index < 0 ? ::current_device : index) & 127];
    if (!generator.defined()) generator = at::make_generator<FakeGenerator>(index);
    return generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex index = -1) const {
    return at::make_generator<FakeGenerator>(index);
  }
  const at::Generator& getDefaultCUDAGenerator(c10::DeviceIndex index = -1) const { return getDefaultGenerator(index); }
  bool isPinnedPtr(const void*) const override { return false; }
  bool isGPUArch(const std::vector<std::string>&, c10::DeviceIndex = -1) const { return false; }
  void deviceSynchronize(c10::DeviceIndex) const override {}
};

struct FakeGuard final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = cuda(-1);
    current_device = device.index() < 0 ? current_device : device.index();
    return before;
  }
  c10::Device getDevice() const override { return cuda(-1); }
  void setDevice(c10::Device device) const override { exchangeDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { exchangeDevice(device); }
  c10::Stream getStream(c10::Device device) const noexcept override { return stream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool = false) const override { return stream(device); }
  c10::Stream getNewStream(c10::Device device, int = 0) const override { return stream(device); }
  c10::Stream exchangeStream(c10::Stream given) const noexcept override { return stream(given.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count.load()); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const {}
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { return 1.0; }

 private:
  static c10::Stream stream(c10::Device device) {
    return c10::Stream(c10::Stream::DEFAULT, cuda(device.index()));
  }
};

}  // namespace

namespace at {
// The priority keeps these in place when a CUDA build registers its own later.
C10_REGISTER_TYPED_CREATOR_WITH_PRIORITY(
    CUDAHooksRegistry, "CUDAHooks", c10::REGISTRY_PREFERRED, [](CUDAHooksArgs arguments) {
      return std::unique_ptr<CUDAHooksInterface>(new FakeHooks(arguments));
    })
}  // namespace at

extern "C" {
void kopt_install_guard(int devices) {
  device_count = devices;
  c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].store(new FakeGuard());
}
int kopt_current_device() { return current_device; }
void kopt_set_device(int index) { current_device = static_cast<c10::DeviceIndex>(index); }
}
