() => {
    const overlaps = [];
    for (const svg of document.querySelectorAll('.panel:not([hidden]) .chart svg')) {
        const frame = svg.getBoundingClientRect();
        const texts = [...svg.querySelectorAll('text')]
            // A label's shadow is the label once more, with a stroke.
            .filter((text) => text.textContent.trim() && getComputedStyle(text).opacity !== '0'
                && getComputedStyle(text).stroke === 'none')
            .map((text) => ({ text: text.textContent, box: text.getBoundingClientRect() }))
            .filter(({ box }) => box.width > 0);
        const name = svg.closest('figure').id;
        for (const { text, box } of texts) {
            if (box.left < frame.left - 2 || box.right > frame.right + 2
                || box.top < frame.top - 2 || box.bottom > frame.bottom + 2) overlaps.push([name, text, 'outside']);
        }
        for (let a = 0; a < texts.length; a += 1) {
            for (let b = a + 1; b < texts.length; b += 1) {
                const [one, two] = [texts[a].box, texts[b].box];
                const wide = Math.min(one.right, two.right) - Math.max(one.left, two.left);
                const tall = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
                // Boxes of text stand a little above and below its letters.
                if (wide > 1 && tall > 4) overlaps.push([name, texts[a].text, texts[b].text, wide, tall]);
            }
        }
    }
    return overlaps.slice(0, 10);
}
