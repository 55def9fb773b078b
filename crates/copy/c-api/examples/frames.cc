// A frame pipeline: a camera fills one of two buffers, the frame is copied into a slot of a ring of
// kept frames, and rows of an earlier frame are filtered meanwhile. The rows of a frame are synced
// as the filter reaches them. The result is compared with the same filter without copies.
//
//   c++ frames.cc $(pkg-config --cflags --libs unlade-copier) && ./a.out

#include <array>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <vector>

#include <unlade/copier.hpp>

namespace {

constexpr std::size_t WIDTH = 1280, HEIGHT = 720, FRAME = WIDTH * HEIGHT, FRAMES = 40, KEPT = 3;

using Frame = std::vector<std::uint8_t>;

void expose(Frame &frame, std::size_t number)
{
    for (std::size_t y = 0; y < HEIGHT; ++y)
        for (std::size_t x = 0; x < WIDTH; ++x)
            frame[y * WIDTH + x] = static_cast<std::uint8_t>(x * (number + 1) + y * 3 + number);
}

// Brightness of a row: the sum of the differences of neighbours.
std::uint64_t filter(const std::uint8_t *row)
{
    std::uint64_t sum = 0;
    for (std::size_t x = 1; x < WIDTH; ++x)
        sum += row[x] > row[x - 1] ? row[x] - row[x - 1] : row[x - 1] - row[x];
    return sum;
}

struct Slot {
    Frame frame = Frame(FRAME);
    unlade::pending_copy copy; // ends before the frame
};

std::uint64_t filter_slot(Slot &slot)
{
    constexpr std::size_t ROWS = 60;
    std::uint64_t sum = 0;
    for (std::size_t y = 0; y < HEIGHT; y += ROWS) {
        const std::uint8_t *rows = slot.copy.sync(y * WIDTH, ROWS * WIDTH);
        for (std::size_t row = 0; row < ROWS; ++row)
            sum += filter(rows + row * WIDTH);
    }
    return sum;
}

} // namespace

int main()
{
    std::array<Frame, 2> camera{{Frame(FRAME), Frame(FRAME)}};
    std::array<Slot, KEPT> ring;
    std::uint64_t sum = 0, expected = 0;
    Frame check(FRAME);

    try {
        for (std::size_t number = 0; number < FRAMES; ++number) {
            Frame &exposed = camera[number % camera.size()];
            // The camera overwrites this buffer: the copy of two frames ago must be over.
            if (number >= camera.size())
                ring[(number - camera.size()) % KEPT].copy.sync();
            expose(exposed, number);
            Slot &slot = ring[number % KEPT];
            slot.copy = unlade::pending_copy(slot.frame.data(), exposed.data(), FRAME, COPIER_SITE);
            if (number > 0)
                sum += filter_slot(ring[(number - 1) % KEPT]);
        }
        sum += filter_slot(ring[(FRAMES - 1) % KEPT]);
    } catch (const std::system_error &error) {
        std::cerr << "frames: " << error.what() << '\n';
        return 1;
    }
    for (std::size_t number = 0; number < FRAMES; ++number) {
        expose(check, number);
        for (std::size_t y = 0; y < HEIGHT; ++y)
            expected += filter(check.data() + y * WIDTH);
    }
    std::cout << "frames: sum " << sum << ", expected " << expected << '\n';
    return sum == expected ? 0 : 1;
}
