"""The same rules, written the long way: every block by itself, every SM by itself, one block placed at a time.

Shares nothing with the engine but the values that go in: no SimPy, no classes, no cohorts, no footprints.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor, inf

from iossim.backends.simulator.events.program import Instruction, IssueKernel
from iossim.backends.simulator.kernel_work import KernelWork
from iossim.hardware.profile import DeviceProfile


@dataclass
class Block:
    work: KernelWork
    kernel: int
    own_dram_us: float
    kept_us: float
    #: Of the device as a whole: DRAM, with what L2 does not keep, power, and the whole of L2.
    asks: dict[str, float]
    left: float = 1.0
    rate: float = 0.0


@dataclass
class Sm:
    blocks: list[Block] = field(default_factory=list)


@dataclass
class Reference:
    """Starts and ends of the kernels, in the order issued, of instructions that only issue kernels."""

    profile: DeviceProfile
    instructions: Sequence[Instruction]
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def run(self) -> None:
        kernels = [step for step in self.instructions if isinstance(step, IssueKernel)]
        works = [step.kernel.demand.work for step in kernels]
        issued, clock = [], 0.0
        for step in kernels:
            clock += step.kernel.host_us
            issued.append(clock)
        self.starts, self.ends = [inf] * len(kernels), [inf] * len(kernels)
        sms = [Sm() for _ in range(self.profile.sm_count)]
        ready: list[float | None] = [None] * len(kernels)
        arrived: list[int] = []
        waiting: dict[int, list[Block]] = {}
        running: dict[int, int] = {}
        now = 0.0
        while min(self.ends, default=0.0) == inf or max(self.ends) == inf:
            for index, step in enumerate(kernels):
                before = [other for other in range(index) if kernels[other].queue == step.queue]
                if ready[index] is None and all(self.ends[other] <= now for other in before):
                    ready[index] = max([issued[index], *(self.ends[other] for other in before)]) + works[index].gap_us
            for index in sorted(range(len(kernels)), key=lambda k: (ready[k] if ready[k] is not None else inf, k)):
                moment = ready[index]
                if moment is not None and moment <= now + 1e-7 and index not in arrived:
                    arrived.append(index)
                    waiting[index] = self.blocks(works[index], index)
                    running[index] = len(waiting[index])
            for index in arrived:
                beside = {other for other, work in enumerate(works) if work.blocks < len(sms) and other != index}
                others = any(block.kernel != index for sm in sms for block in sm.blocks)
                waits = others and any(
                    not self.room(sm, works[index]) and self.held(sm, index) < self.most_beside_others(works[index])
                    for sm in sms
                )
                spared = beside if waits or works[index].blocks < len(sms) else set()
                while waiting[index]:
                    rooms = [
                        self.given(sm, index, works, spared) if others else self.room(sm, works[index]) for sm in sms
                    ]
                    best = max(range(len(sms)), key=lambda sm: (rooms[sm], -self.warps(sms[sm]), -sm))
                    if rooms[best] <= 0:
                        if waits or not spared:
                            break
                        spared = set()
                        continue
                    sms[best].blocks.append(waiting[index].pop(0))
                    self.starts[index] = min(self.starts[index], now)
                if waiting[index] and not any(self.room(sm, works[index]) > 0 for sm in sms):
                    break  # Later kernels wait behind one that found every SM full.
            self.set_rates(sms, works)
            resident = [block for sm in sms for block in sm.blocks]
            next_end = min((block.left / block.rate for block in resident), default=inf)
            later = [moment for moment in ready if moment is not None and moment > now + 1e-7]
            step_us = min(next_end, min(later, default=inf) - now)
            assert step_us < inf
            now += step_us
            for block in resident:
                block.left -= block.rate * step_us
            for sm in sms:
                for block in [block for block in sm.blocks if block.left <= block.rate * 1e-7]:
                    sm.blocks.remove(block)
                    running[block.kernel] -= 1
                    if not running[block.kernel]:
                        self.ends[block.kernel] = now

    def blocks(self, work: KernelWork, kernel: int) -> list[Block]:
        """All blocks in order; the device's time goes to waves by the time that each takes alone, then equally."""
        per_wave = self.most_resident(work) * self.profile.sm_count
        waves = [min(per_wave, work.blocks - begin) for begin in range(0, work.blocks, per_wave)]
        took = [self.together_us(work, ceil(count / self.profile.sm_count)) for count in waves]
        return [
            self.block(work, kernel, us / sum(took) / count)
            for count, us in zip(waves, took, strict=True)
            for _ in range(count)
        ]

    def block(self, work: KernelWork, kernel: int, part: float) -> Block:
        asks = {"dram": 0.0, "power": work.power_us * part, "l2": work.l2_device_us * part}
        return Block(work, kernel, work.dram_us * part, work.kept_us * part, asks)

    def together_us(self, work: KernelWork, count: int) -> float:
        return max(1e-3, work.least_us, count * max(work.issue_us, work.pipe_us, work.l2_us))

    def most_resident(self, work: KernelWork) -> int:
        return self.room(Sm(), work)

    def given(self, sm: Sm, kernel: int, works: Sequence[KernelWork], beside: set[int]) -> int:
        """How many more blocks an SM is given beside others: its share, and as many as slow none of some kernels."""
        counts = [self.held(sm, other) for other in range(len(works))]
        room = min(self.room(sm, works[kernel]), self.most_beside_others(works[kernel]) - counts[kernel])
        busy = sum(self.busy(works[other], counts[other]) for other in beside if counts[other])
        while busy and room > 0 and busy + self.busy(works[kernel], counts[kernel] + room) > 1 + 1e-9:
            room -= 1
        return room

    def held(self, sm: Sm, kernel: int) -> int:
        return sum(block.kernel == kernel for block in sm.blocks)

    def busy(self, work: KernelWork, count: int) -> float:
        return count * max(work.issue_us, work.pipe_us, work.l2_us) / self.together_us(work, count)

    def most_beside_others(self, work: KernelWork) -> int:
        """An even share of the blocks, or more where that slows none of them."""
        most = ceil(work.blocks / self.profile.sm_count)
        while most < self.most_resident(work) and self.together_us(work, most + 1) <= self.together_us(work, 1):
            most += 1
        return most

    def room(self, sm: Sm, work: KernelWork) -> int:
        """How many more blocks fit: threads, slots, registers by warps that fit the file, shared memory by units."""
        limits = self.profile.limits
        shared = Fraction(0)
        registers = Fraction(0)
        for block in sm.blocks:
            shared += self.shared(block.work)
            registers += self.register_share(block.work)
        warps = ceil(work.threads_per_block / 32)
        rooms = [
            (min(limits.max_warps, limits.max_threads // 32) - self.warps(sm)) // warps,
            limits.max_blocks - len(sm.blocks),
            floor((1 - registers) / self.register_share(work)),
        ]
        if self.shared(work):
            rooms.append(floor((limits.shared_bytes - shared) / self.shared(work)))
        return min(rooms)

    def warps(self, sm: Sm) -> int:
        return sum(ceil(block.work.threads_per_block / 32) for block in sm.blocks)

    def register_share(self, work: KernelWork) -> Fraction:
        limits = self.profile.limits
        per_warp = ceil(work.registers_per_thread * 32 / limits.register_granularity) * limits.register_granularity
        fit = limits.registers // per_warp // limits.warp_granularity * limits.warp_granularity
        return Fraction(ceil(work.threads_per_block / 32), fit)

    def shared(self, work: KernelWork) -> int:
        limits = self.profile.limits
        unit = limits.shared_granularity_bytes
        return ceil((work.shared_bytes_per_block + limits.reserved_shared_bytes_per_block) / unit) * unit

    def set_rates(self, sms: Sequence[Sm], works: Sequence[KernelWork]) -> None:
        everything = [block for sm in sms for block in sm.blocks]
        running = {block.kernel for block in everything}
        interference = 0.0 if self.profile.kind == "gpu" else self.profile.parameters.interference
        factor = 1.0 + interference * (len(running) > 1)
        touched = sum(works[kernel].footprint_bytes for kernel in running)
        for block in everything:
            lost = self.lost(touched)
            alone = self.lost(block.work.footprint_bytes)
            spilled = (lost - alone) / (1 - alone) if alone < 1 else 0.0
            block.asks["dram"] = block.own_dram_us + spilled * block.kept_us
        for sm in sms:
            for block in sm.blocks:
                block.rate = 1 / self.together_us(block.work, self.held(sm, block.kernel))
        for kernel in running:
            own = [block for block in everything if block.kernel == kernel]
            reach = works[kernel].reach
            highest = min(
                self.highest([(block.rate, block.asks[what]) for block in own], most)
                for what, most in (("dram", reach), ("l2", reach), ("power", 1.0))
            )
            for block in own:
                block.rate = min(block.rate, highest)
        for sm in sms:
            uses = [
                {"issue": block.work.issue_us, "l2": block.work.l2_us, "pipe " + block.work.pipe: block.work.pipe_us}
                for block in sm.blocks
            ]
            self.slow(sm.blocks, uses, factor)
        self.slow(everything, [block.asks for block in everything], factor)

    def slow(self, blocks: Sequence[Block], uses: Sequence[dict[str, float]], factor: float) -> None:
        """What is asked for more than there is slows all that use it, by the largest excess of what they use."""
        whole: dict[str, float] = {}
        for block, use in zip(blocks, uses, strict=True):
            for what, us in use.items():
                whole[what] = whole.get(what, 0.0) + factor * block.rate * us
        for block, use in zip(blocks, uses, strict=True):
            block.rate /= max([1.0, *(whole[what] for what, us in use.items() if us)])

    def lost(self, touched: float) -> float:
        """Of what is gone through from end to end, up to 0.85 of L2's part all stays, from 1.25 of it nothing does."""
        room = self.profile.parameters.l2_resident_fraction * self.profile.datasheet.l2_bytes.value
        return min(1.0, max(0.0, (touched / room - 0.85) / 0.4))

    def highest(self, asks: Sequence[tuple[float, float]], most: float) -> float:
        """The rate to which a kernel's fastest blocks are slowed, so that the device carries what all ask: by bisection."""
        if sum(rate * us for rate, us in asks) <= most:
            return inf
        low, high = 0.0, max(rate for rate, _ in asks)
        for _ in range(200):
            middle = (low + high) / 2
            if sum(min(rate, middle) * us for rate, us in asks) <= most:
                low = middle
            else:
                high = middle
        return low
