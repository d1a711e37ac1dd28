// From the whole trace in to 300 µs, to the side, and back out, at three places; a step a frame.
(async () => {
  const { view, model, frames: draws } = quellView;
  const frames = [];
  let last = null;
  draws.length = 0;
  const frame = () => new Promise((done) => requestAnimationFrame((now) => {
    if (last !== null) frames.push(now - last);
    last = now;
    done();
  }));
  const steps = 60;
  const factor = (3e5 / model.span) ** (1 / steps);
  for (const place of [0.25, 0.5, 0.8]) {
    const around = model.span * place;
    for (let step = 0; step < steps; step++) {
      view.zoom(factor, around);
      await frame();
      if (step % 20 !== 19) continue;
      for (let pan = 0; pan < 20; pan++) {
        view.pan(view.length / 25);
        await frame();
      }
    }
    for (let step = 0; step < steps; step++) {
      view.zoom(1 / factor, around);
      await frame();
    }
  }
  return { frames, draws: [...draws] };
})()
